#include "coordinator/scheduler/choices.h"

#include <algorithm>
#include <utility>

namespace somnus {
namespace {

template <typename Wanted>
std::vector<SequencePtr> Members(const SequencePtr& sequence, const Wanted& is_wanted) {
  if (sequence->choice.group == nullptr) return {sequence};
  std::vector<SequencePtr> members;
  for (const std::weak_ptr<Sequence>& member : sequence->choice.group->members) {
    SequencePtr one = member.lock();
    if (one == sequence || is_wanted(*one)) members.push_back(std::move(one));
  }
  return members;
}

}  // namespace

void Choices::Join(const SequencePtr& sequence, const SequencePtr& first) {
  if (sequence->beam.group != nullptr) return;
  const bool is_first = sequence->request.fork_of.empty();
  const std::string& first_id = is_first ? sequence->request.id : sequence->request.fork_of;
  if (is_first && !groups_.contains(first_id)) return;
  std::shared_ptr<ChoiceGroup>& group = groups_[first_id];
  const auto join = [&](const SequencePtr& one) {
    one->choice.group = group;
    group->members.push_back(one);
  };
  if (group == nullptr) {
    group = std::make_shared<ChoiceGroup>();
    group->first_id = first_id;
    if (first != nullptr && first->choice.group == nullptr && first->beam.group == nullptr) join(first);
  }
  join(sequence);
}

void Choices::OnForget(Sequence* sequence) {
  LeaveTogether(sequence);
  const std::shared_ptr<ChoiceGroup> group = std::exchange(sequence->choice.group, nullptr);
  if (group == nullptr) return;
  std::erase_if(group->members, [&](const auto& member) { return member.lock().get() == sequence; });
  if (group->members.empty()) groups_.erase(group->first_id);
}

bool Choices::AwaitFork(const SequencePtr& sequence, const SequencePtr& source) {
  if (source == nullptr || sequence->was_scheduled || sequence->owes_prompt_logprobs()) return false;
  const bool computes_the_same = source->request.sampling == sequence->request.sampling &&
                                 source->request.cache_salt == sequence->request.cache_salt &&
                                 source->request.priority == sequence->request.priority &&
                                 source->request.prompt == sequence->request.prompt;
  if (!computes_the_same || source->num_outputs() > 0 || source->num_pending > 0) return false;
  sequence->choice.fork_source = source;
  source->choice.forks.push_back(sequence);
  return true;
}

SequencePtr Choices::ForkSource(const Sequence& sequence) {
  SequencePtr source = sequence.choice.fork_source.lock();
  return source == nullptr || source->choice.forks.empty() ? nullptr : source;
}

std::vector<SequencePtr> Choices::ForksOf(const Sequence& source) {
  std::vector<SequencePtr> forks;
  for (const std::weak_ptr<Sequence>& fork : source.choice.forks) {
    SequencePtr sequence = fork.lock();
    if (sequence != nullptr && !sequence->finished()) forks.push_back(std::move(sequence));
  }
  return forks;
}

std::vector<SequencePtr> Choices::TakeForks(Sequence* source) {
  std::vector<SequencePtr> forks = ForksOf(*source);
  source->choice.forks = {};
  for (const SequencePtr& fork : forks) fork->choice.fork_source.reset();
  return forks;
}

std::vector<SequencePtr> Choices::Running(const SequencePtr& sequence) {
  return Members(sequence, [](const Sequence& one) { return one.state == SequenceState::kRunning; });
}

std::vector<SequencePtr> Choices::WaitingTogether(const SequencePtr& sequence) {
  if (sequence->choice.together == nullptr) return {sequence};
  return Members(sequence,
                 [&](const Sequence& one) { return one.choice.together == sequence->choice.together; });
}

std::vector<SequencePtr> Choices::SuspendedBehind(const SequencePtr& sequence, const ServiceKey& behind) {
  return Members(sequence, [&](const Sequence& one) { return one.held.is_suspended && KeyOf(one) > behind; });
}

void Choices::KeepTogether(const std::vector<SequencePtr>& preempted) {
  if (preempted[0]->choice.group == nullptr) return;  // the request has one choice
  const std::vector<SequencePtr> all = Members(preempted[0], [&](const Sequence& one) {
    const auto is_one = [&](const SequencePtr& other) { return other.get() == &one; };
    return one.choice.together != nullptr || std::any_of(preempted.begin(), preempted.end(), is_one);
  });
  if (all.size() < 2) return;
  const auto together = std::make_shared<PreemptedTogether>();
  for (const SequencePtr& one : all) {
    LeaveTogether(one.get());
    one->choice.together = together;
    ++together->num_waiting;
  }
}

void Choices::LeaveTogether(Sequence* sequence) {
  if (const auto together = std::exchange(sequence->choice.together, nullptr)) --together->num_waiting;
}

}  // namespace somnus
