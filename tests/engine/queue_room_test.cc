#include "coordinator/engine/queue_room.h"

#include <gtest/gtest.h>

#include "coordinator/request/queue_refusal.h"

namespace somnus {
namespace {

EngineRequest Of(const std::string& user, const std::string& id, size_t tokens = 1) {
  EngineRequest request;
  request.id = id;
  request.user = user;
  request.prompt = std::vector<int32_t>(tokens, 7);
  request.queued_bytes = static_cast<int64_t>(4 * tokens);
  return request;
}

// Refused, or added.
bool Add(QueueRoom* room, const EngineRequest& request) {
  const absl::Status status = room->Check({request}, 0);
  if (status.ok()) room->Add(request);
  EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  return status.ok();
}

TEST(QueueRoomTest, AUserHasAShareOfTheRequests) {
  QueueRoom room({.max_num_waiting = 6, .max_user_share = 0.5});
  for (const char* id : {"a1", "a2", "a3"}) EXPECT_TRUE(Add(&room, Of("a", id)));
  EXPECT_FALSE(Add(&room, Of("a", "a4")));
  for (const char* id : {"b1", "b2", "b3"}) EXPECT_TRUE(Add(&room, Of("b", id)));
  EXPECT_FALSE(Add(&room, Of("c", "c1"))) << "the queue is full";
  room.NoteScheduled(Of("a", "a1"));
  EXPECT_TRUE(Add(&room, Of("a", "a4"))) << "one that runs does not count";
  EXPECT_FALSE(Add(&room, Of("a", "a5")));
  room.Remove(Of("a", "a2"), /*was_scheduled=*/false);
  EXPECT_TRUE(Add(&room, Of("a", "a5")));
  room.Remove(Of("a", "a1"), /*was_scheduled=*/true);
  EXPECT_FALSE(Add(&room, Of("a", "a6"))) << "it had left the queue before";
}

TEST(QueueRoomTest, AUserHasAShareOfTokensAndBytes) {
  for (const QueueLimits& limits : {QueueLimits{.max_num_waiting_tokens = 100, .max_user_share = 0.3},
                                    QueueLimits{.max_waiting_bytes = 400, .max_user_share = 0.3}}) {
    QueueRoom room(limits);
    EXPECT_TRUE(Add(&room, Of("a", "a1", 20)));
    EXPECT_FALSE(Add(&room, Of("a", "a2", 11)));
    EXPECT_TRUE(Add(&room, Of("a", "a3", 10)));
    EXPECT_TRUE(Add(&room, Of("b", "b1", 70))) << "nothing of it waits";
    EXPECT_FALSE(Add(&room, Of("c", "c1", 1)));
  }
}

TEST(QueueRoomTest, ARefusalNamesTheBound) {
  const auto bound_of = [](const QueueLimits& limits, const std::string& user) {
    QueueRoom room(limits);
    room.Add(Of("a", "first", 10));
    return QueueBoundOf(room.Check({Of(user, "second", 10)}, 0));
  };
  EXPECT_EQ(bound_of({.max_num_waiting = 1}, "b"), "max_num_queued_reqs");
  EXPECT_EQ(bound_of({.max_num_waiting_tokens = 15}, "b"), "max_num_queued_tokens");
  EXPECT_EQ(bound_of({.max_waiting_bytes = 60}, "b"), "max_waiting_bytes");
  EXPECT_EQ(bound_of({.max_num_waiting_tokens = 30, .max_user_share = 0.5}, "a"), "max_user_queue_share");
  EXPECT_EQ(bound_of({}, "b"), "");
}

TEST(QueueRoomTest, WithoutAShareUsersDoNotCount) {
  QueueRoom room({.max_num_waiting = 4});
  for (const char* id : {"1", "2", "3", "4"}) EXPECT_TRUE(Add(&room, Of("a", id)));
  EXPECT_FALSE(Add(&room, Of("b", "5")));
}

TEST(QueueRoomTest, ClearedItIsEmpty) {
  QueueRoom room({.max_num_waiting = 2, .max_user_share = 0.5});
  EXPECT_TRUE(Add(&room, Of("a", "1")));
  EXPECT_FALSE(Add(&room, Of("a", "2")));
  room.Clear();
  EXPECT_EQ(room.waiting_tokens(), 0);
  EXPECT_TRUE(Add(&room, Of("a", "1")));
}

}  // namespace
}  // namespace somnus
