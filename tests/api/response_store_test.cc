// The store of responses: the bounds, and the turns that conversations share.

#include "coordinator/responses/response_store.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

constexpr int64_t kMany = 1 << 30;

// Keeps a response whose body and turn have `size` bytes each.
void Keep(ResponseStore* store, const std::string& id, size_t size = 10, Conversation before = {}) {
  store->Begin(id, "{}");
  store->End(id, std::string(size, 'b'), std::move(before), std::string(size, 't'));
}

TEST(ResponseStoreTest, AResponseIsThereFromBeginToRemove) {
  ResponseStore store(10, kMany);
  store.Begin("a", "first");
  ASSERT_TRUE(store.Find("a").has_value());
  EXPECT_FALSE(store.Find("a")->has_ended);
  EXPECT_EQ(*store.Find("a")->body, "first");
  store.End("a", "last", {}, "turn");
  const std::optional<StoredResponse> ended = store.Find("a");
  EXPECT_TRUE(ended->has_ended);
  EXPECT_EQ(*ended->body, "last");
  ASSERT_TRUE(ended->conversation.has_value());
  ASSERT_EQ(ended->conversation->size(), 1u);
  EXPECT_EQ(*ended->conversation->front(), "turn");
  EXPECT_TRUE(store.Remove("a"));
  EXPECT_FALSE(store.Remove("a"));
  EXPECT_FALSE(store.Find("a").has_value());
}

TEST(ResponseStoreTest, AResponseThatWasRemovedMeanwhileStaysAway) {
  ResponseStore store(10, kMany);
  store.Begin("a", "first");
  store.Remove("a");
  store.End("a", "last", {}, "turn");
  EXPECT_FALSE(store.Find("a").has_value());
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStoreTest, NothingGoesOnWithAResponseThatWasCancelled) {
  ResponseStore store(10, kMany);
  store.Begin("a", "first");
  store.EndWithoutTurn("a", "cancelled");
  EXPECT_TRUE(store.Find("a")->has_ended);
  EXPECT_EQ(*store.Find("a")->body, "cancelled");
  EXPECT_FALSE(store.Find("a")->conversation.has_value());
}

TEST(ResponseStoreTest, TheResponseUnusedForLongestGoesFirst) {
  ResponseStore store(2, kMany);
  Keep(&store, "a");
  Keep(&store, "b");
  EXPECT_TRUE(store.Find("a").has_value());
  Keep(&store, "c");
  EXPECT_TRUE(store.Find("a").has_value());
  EXPECT_FALSE(store.Find("b").has_value());
  EXPECT_TRUE(store.Find("c").has_value());
}

TEST(ResponseStoreTest, BytesAreBounded) {
  ResponseStore store(1000, 10'000);
  for (int i = 0; i < 100; ++i) {
    Keep(&store, absl::StrCat(i), 1000);
    EXPECT_LE(store.bytes(), 10'000);
  }
  EXPECT_TRUE(store.Find("99").has_value());
  EXPECT_FALSE(store.Find("0").has_value());
  Keep(&store, "huge", 100'000);
  EXPECT_FALSE(store.Find("huge").has_value()) << "alone above the bound";
  EXPECT_TRUE(store.Find("99").has_value()) << "which costs no other response its place";
}

TEST(ResponseStoreTest, ConversationsShareTheirTurns) {
  ResponseStore store(1000, kMany);
  Keep(&store, "0", 10'000);
  for (int i = 1; i < 50; ++i)
    Keep(&store, absl::StrCat(i), 10, *store.Find(absl::StrCat(i - 1))->conversation);
  EXPECT_EQ(store.Find("49")->conversation->size(), 50u);
  EXPECT_LT(store.bytes(), 100'000) << "the first turn is there once";
  store.Remove("0");
  EXPECT_EQ(store.Find("49")->conversation->front()->size(), 10'000u);
  for (int i = 1; i < 50; ++i) store.Remove(absl::StrCat(i));
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStoreTest, ATurnOutlivesTheStore) {
  Conversation kept;
  {
    ResponseStore store(10, kMany);
    Keep(&store, "a");
    kept = *store.Find("a")->conversation;
  }
  EXPECT_EQ(*kept[0], "tttttttttt");
}

TEST(ResponseStoreTest, AStoreOfNoResponsesKeepsNone) {
  ResponseStore store(0, kMany);
  EXPECT_FALSE(store.keeps_any());
  Keep(&store, "a");
  EXPECT_FALSE(store.Find("a").has_value());
}

TEST(ResponseStoreTest, ManyThreads) {
  ResponseStore store(20, 50'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      for (int i = 0; i < 500; ++i) {
        const std::string id = absl::StrCat(t, "-", i);
        const std::optional<StoredResponse> other = store.Find(absl::StrCat((t + 1) % 4, "-", i));
        const bool goes_on = other.has_value() && other->conversation.has_value();
        Keep(&store, id, 100, goes_on ? *other->conversation : Conversation());
        if (i % 3 == 0) store.Remove(id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store.bytes(), 50'000);
}

}  // namespace
}  // namespace somnus
