#include "coordinator/scheduler/waiting_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace somnus {
namespace {

SequencePtr Waiting(int64_t id, int32_t priority) {
  auto sequence = std::make_shared<Sequence>();
  sequence->id = id;
  sequence->effective_priority = priority;
  return sequence;
}

std::string Order(const WaitingQueue& queue) {
  std::string ids;
  for (const auto& [key, sequence] : queue) ids += std::to_string(sequence->id);
  return ids;
}

TEST(WaitingQueueTest, ByPriorityThenArrival) {
  WaitingQueue queue(/*aging_steps=*/0, /*brief_tokens=*/4);
  for (const auto& [id, priority] : {std::pair(1, 5), {2, 0}, {3, 5}, {4, -1}}) {
    queue.Insert(Waiting(id, priority), 1);
  }
  queue.Age(1000000);
  EXPECT_EQ(Order(queue), "4213");
}

TEST(WaitingQueueTest, BriefOnesAreFoundBehindAnyNumberOfOthers) {
  WaitingQueue queue(/*aging_steps=*/10, /*brief_tokens=*/4);
  std::vector<SequencePtr> sequences;
  for (int64_t id = 1; id <= 9; ++id) {
    sequences.push_back(Waiting(id, 0));
    sequences.back()->tokens.assign(id % 4 == 0 ? 4 : 5, 1);  // 4 and 8 are brief
    queue.Insert(sequences.back(), 1);
  }
  EXPECT_FALSE(queue.IsBrief(queue.begin()->first));
  auto next = queue.NextBrief(queue.begin()->first);
  ASSERT_NE(next, queue.end());
  EXPECT_EQ(next->second->id, 4);
  EXPECT_TRUE(queue.IsBrief(next->first));
  queue.Erase(sequences[3].get(), 2);
  next = queue.NextBrief(queue.begin()->first);
  ASSERT_NE(next, queue.end());
  EXPECT_EQ(next->second->id, 8);
  EXPECT_EQ(queue.NextBrief(next->first), queue.end());
  queue.Age(11);  // all have better places, in the same order
  EXPECT_EQ(queue.NextBrief(queue.begin()->first)->second->id, 8);
}

TEST(WaitingQueueTest, WaitingImprovesThePriority) {
  WaitingQueue queue(/*aging_steps=*/10, /*brief_tokens=*/4);
  const SequencePtr old = Waiting(1, 2);
  queue.Insert(old, 1);
  queue.Insert(Waiting(2, 1), 5);
  queue.Age(10);
  EXPECT_EQ(Order(queue), "21");
  queue.Age(11);
  EXPECT_EQ(old->effective_priority, 1);
  EXPECT_EQ(Order(queue), "12");
  queue.Age(15);
  EXPECT_EQ(Order(queue), "21") << "the other one has waited for ten steps, too";
  queue.Age(41);
  EXPECT_EQ(old->effective_priority, -2);
}

TEST(WaitingQueueTest, AWaitGoesOnWhereTheLastOneEnded) {
  WaitingQueue queue(/*aging_steps=*/10, /*brief_tokens=*/4);
  const SequencePtr sequence = Waiting(1, 0);
  queue.Insert(sequence, 1);
  queue.Age(8);
  queue.Erase(sequence.get(), 8);  // after seven steps
  EXPECT_TRUE(queue.empty());
  queue.Age(100);
  EXPECT_EQ(sequence->effective_priority, 0);
  queue.Insert(sequence, 100);
  queue.Age(102);
  EXPECT_EQ(sequence->effective_priority, 0);
  queue.Age(103);
  EXPECT_EQ(sequence->effective_priority, -1);
  queue.Erase(sequence.get(), 103);
  EXPECT_EQ(sequence->waited_steps, 0);
}

}  // namespace
}  // namespace somnus
