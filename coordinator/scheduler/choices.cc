// The Scheduler's part for the choices of one request: they are preempted together, and come back together.
//
// All or nothing holds against other requests. A request that has the cache to itself gives its choices up
// one after the other, the last one first, and each of these comes back as it finds room: so a request whose
// choices never have room together is served all the same.

#include <algorithm>
#include <utility>

#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/choice_group.h"
#include "coordinator/scheduler/prefix_lookups.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {
namespace {

template <typename Wanted>
std::vector<SequencePtr> Members(const SequencePtr& sequence, const Wanted& is_wanted) {
  if (sequence->choices == nullptr) return {sequence};
  std::vector<SequencePtr> members;
  for (const std::weak_ptr<Sequence>& member : sequence->choices->members) {
    SequencePtr one = member.lock();
    if (one == sequence || is_wanted(*one)) members.push_back(std::move(one));
  }
  return members;
}

}  // namespace

void Scheduler::JoinChoices(const SequencePtr& sequence) {
  if (sequence->beams != nullptr) return;
  const bool is_first = sequence->request.fork_of.empty();
  const std::string& first_id = is_first ? sequence->request.id : sequence->request.fork_of;
  if (is_first && !choice_groups_.contains(first_id)) return;
  std::shared_ptr<ChoiceGroup>& group = choice_groups_[first_id];
  const auto join = [&](const SequencePtr& one) {
    one->choices = group;
    group->members.push_back(one);
  };
  if (group == nullptr) {
    group = std::make_shared<ChoiceGroup>();
    group->first_id = first_id;
    const auto first = live_.find(first_id);
    const bool has_none =
        first != live_.end() && first->second->choices == nullptr && first->second->beams == nullptr;
    if (has_none) join(first->second);
  }
  join(sequence);
}

void Scheduler::LeaveChoices(Sequence* sequence) {
  LeaveTogether(sequence);
  const std::shared_ptr<ChoiceGroup> group = std::exchange(sequence->choices, nullptr);
  if (group == nullptr) return;
  std::erase_if(group->members, [&](const auto& member) { return member.lock().get() == sequence; });
  if (group->members.empty()) choice_groups_.erase(group->first_id);
}

std::vector<SequencePtr> Scheduler::RunningChoices(const SequencePtr& sequence) {
  return Members(sequence, [](const Sequence& one) { return one.state == SequenceState::kRunning; });
}

std::vector<SequencePtr> Scheduler::WaitingTogether(const SequencePtr& sequence) {
  if (sequence->together == nullptr) return {sequence};
  return Members(sequence, [&](const Sequence& one) { return one.together == sequence->together; });
}

std::vector<SequencePtr> Scheduler::SuspendedChoices(const SequencePtr& sequence, const ServiceKey& behind) {
  return Members(sequence, [&](const Sequence& one) { return one.is_suspended && KeyOf(one) > behind; });
}

// With the ones that have been preempted together before and have not come back.
void Scheduler::KeepTogether(const std::vector<SequencePtr>& preempted) {
  if (preempted[0]->choices == nullptr) return;  // it has but one
  const std::vector<SequencePtr> all = Members(preempted[0], [&](const Sequence& one) {
    const auto is_one = [&](const SequencePtr& other) { return other.get() == &one; };
    return one.together != nullptr || std::any_of(preempted.begin(), preempted.end(), is_one);
  });
  if (all.size() < 2) return;
  const auto together = std::make_shared<PreemptedTogether>();
  for (const SequencePtr& one : all) {
    LeaveTogether(one.get());
    one->together = together;
    ++together->num_waiting;
  }
}

BlockManager::Room Scheduler::RoomFor(const std::vector<SequencePtr>& all, bool ignore_watermark) {
  std::vector<BlockManager::Returning> returning;
  const Sequence* first = nullptr;  // to be computed
  for (const SequencePtr& one : all) {
    if (one->beams != nullptr) {
      for (const Sequence* part : WithHostBlocks(*one, blocks_))
        returning.push_back({part->id, part->tokens, one->request.cache_salt});
      continue;
    }
    BlockManager::Returning& next = returning.emplace_back(
        BlockManager::Returning{one->id, one->tokens, one->request.cache_salt, UsesPrefixCache(*one)});
    if (one->keeps_computed() || !next.use_cache || !options_.blocks.enable_prefix_caching) continue;
    if (first != nullptr) next.num_shared = CommonPrefix(*first, *one);
    if (first == nullptr) first = one.get();
  }
  return blocks_.RoomFor(returning, ignore_watermark);
}

// Those that can never be in the cache together, or that have nothing to wait for, go one by one from now on.
bool Scheduler::MayComeBack(const SequencePtr& sequence, size_t num_slots) {
  // Where nothing runs, what has begun to come back must not wait for room that there may never be.
  if (sequence->together == nullptr || (sequence->together->comes_back && !running_.empty())) return true;
  const std::vector<SequencePtr> all = WaitingTogether(sequence);
  const auto is_swapped = [](const SequencePtr& one) { return one->is_swapped; };
  const auto runs_alone = [](const SequencePtr& one) { return one->runs_alone; };
  if (std::any_of(all.begin(), all.end(), [](const SequencePtr& one) { return HasPending(*one); }))
    return false;
  if (std::any_of(all.begin(), all.end(), is_swapped) && !MaySwapIn(all)) return false;
  const bool ignores_watermark = running_.empty();
  BlockManager::Room room = RoomFor(all, ignores_watermark);
  while (room.missing > 0 && PreemptSuspendedBehind(KeyOf(*sequence), *sequence))
    room = RoomFor(all, ignores_watermark);
  const bool apart = std::any_of(all.begin(), all.end(), runs_alone);
  if (room.missing <= 0 && all.size() <= num_slots && !apart) {
    sequence->together->comes_back = true;
    sequence->together->ignores_watermark = ignores_watermark;
    return true;
  }
  if (!apart && !running_.empty() && room.total <= blocks_.total_blocks()) return false;
  for (const SequencePtr& one : all) LeaveTogether(one.get());
  return true;
}

bool Scheduler::IgnoresWatermark(const Sequence& sequence) const {
  return running_.empty() || (sequence.together != nullptr && sequence.together->ignores_watermark);
}

// Takes back what the step in the making has for a sequence that decodes.
void Scheduler::Unschedule(const SequencePtr& sequence, StepBuilder* builder) {
  std::vector<ScheduledEntry>& entries = builder->step.entries;
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [&](const ScheduledEntry& one) { return one.sequence == sequence; });
  if (entry == entries.end()) return;
  builder->plan.request.mutable_sequences()->DeleteSubrange(static_cast<int>(entry - entries.begin()), 1);
  sequence->num_computed -= entry->num_tokens;
  sequence->num_pending -= entry->samples ? 1 : 0;
  builder->budget += entry->num_tokens;
  entries.erase(entry);
}

}  // namespace somnus
