// The events of a request's trail on the way through the scheduler.
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "coordinator/request/request_trail.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

constexpr int32_t kMaxEntries = 20;

std::shared_ptr<RequestTrail> NewTrail() {
  return std::make_shared<RequestTrail>(RequestTrail::Facts{}, absl::Now(), kMaxEntries);
}

std::string EventsOf(const RequestTrail& trail) {
  return absl::StrJoin(trail.Look(true).entries, ", ",
                       [](std::string* out, const RequestTrail::Entry& entry) {
                         out->append(TrailEventName(entry.event));
                         if (!entry.detail.empty()) out->append(" (" + entry.detail + ")");
                         if (entry.count > 1) out->append(" x" + std::to_string(entry.count));
                       });
}

TEST(TrailTest, APreemptionAndWhatFollowsAreTold) {
  // Two sequences that grow to nine blocks each do not fit into eleven.
  Harness h(SmallOptions(/*num_blocks=*/12));
  EngineRequest first = MakeRequest("first", 8, 24), second = MakeRequest("second", 8, 24, 100);
  first.trail = NewTrail();
  second.trail = NewTrail();
  const auto first_trail = first.trail, second_trail = second.trail;
  h.Add(std::move(first));
  h.Add(std::move(second));
  h.RunToEnd();
  EXPECT_EQ(EventsOf(*first_trail), "queued, scheduled");
  EXPECT_EQ(EventsOf(*second_trail), "queued, scheduled, preempted (no_blocks, recompute), resumed");
  EXPECT_EQ(second_trail->Look(false).num_preemptions, 1);
  EXPECT_EQ(second_trail->Look(false).state, RequestTrail::State::kRunning)
      << "the client's side notes the end";
}

TEST(TrailTest, ASuspensionIsNoPreemption) {
  Harness h(SmallOptions());
  EngineRequest request = MakeRequest("one", 8, 24);
  request.trail = NewTrail();
  const auto trail = request.trail;
  h.Add(std::move(request));
  h.Step();
  h.Step();
  h.scheduler.SuspendAll();
  EXPECT_EQ(trail->Look(false).state, RequestTrail::State::kPreempted);
  h.RunToEnd();
  EXPECT_EQ(EventsOf(*trail), "queued, scheduled, suspended, resumed");
  EXPECT_EQ(trail->Look(false).num_preemptions, 0);
}

TEST(TrailTest, ARequestThatMovesBeforeItIsScheduledStillWaits) {
  RequestTrail trail({}, absl::Now(), kMaxEntries);
  trail.Note(TrailEvent::kMoved);
  EXPECT_EQ(trail.Look(false).state, RequestTrail::State::kWaiting);
  trail.Note(TrailEvent::kScheduled);
  trail.Note(TrailEvent::kMoved);
  EXPECT_EQ(trail.Look(false).state, RequestTrail::State::kPreempted);
}

TEST(TrailTest, ATrailIsBoundedAndItsEndIsAlwaysTold) {
  RequestTrail trail({}, absl::Now(), kMaxEntries);
  const auto count = int64_t{kMaxEntries};
  for (int64_t i = 0; i < count; ++i) {
    trail.Note(TrailEvent::kPreempted, std::to_string(i));
    trail.Note(TrailEvent::kResumed);
    trail.Note(TrailEvent::kResumed);
  }
  trail.NoteEnd("error", std::string(10000, 'x'));
  trail.Note(TrailEvent::kPreempted, "after the end");
  trail.NoteEnd("stop", "");
  const RequestTrail::View view = trail.Look(true);
  EXPECT_EQ(view.entries.size(), size_t{kMaxEntries + 1});
  EXPECT_EQ(view.entries[2].count, 2) << "the same twice is one entry";
  EXPECT_EQ(view.entries.back().event, TrailEvent::kEnded);
  EXPECT_LE(view.entries.back().detail.size(), RequestTrail::kMaxDetailBytes + 16);
  EXPECT_EQ(view.finish_reason, "error");
  EXPECT_EQ(view.num_preemptions, count);
  EXPECT_GT(view.num_dropped, 0);
}

}  // namespace
}  // namespace somnus
