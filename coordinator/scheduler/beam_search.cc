#include "coordinator/scheduler/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace somnus {
namespace {

// What the client has asked for of one step's log-probabilities: `token` first, then the likeliest.
Logprobs Trim(const Logprobs& from, size_t place, int32_t num_alternatives) {
  Logprobs trimmed;
  trimmed.token_ids = {from.token_ids[place]};
  trimmed.logprobs = {from.logprobs[place]};
  trimmed.rank = static_cast<int32_t>(place);  // [0] is the chosen one, [1] has rank 1
  const size_t end = std::min<size_t>(from.token_ids.size(), 1 + num_alternatives);
  trimmed.token_ids.insert(trimmed.token_ids.end(), from.token_ids.begin() + 1, from.token_ids.begin() + end);
  trimmed.logprobs.insert(trimmed.logprobs.end(), from.logprobs.begin() + 1, from.logprobs.begin() + end);
  return trimmed;
}

}  // namespace

BeamSearch::BeamSearch(const BeamSearchParams* params, const std::vector<int32_t>& prompt,
                       int64_t max_outputs, BeamState state)
    : params_(params),
      prompt_len_(static_cast<int64_t>(prompt.size())),
      last_prompt_token_(prompt.back()),
      max_outputs_(max_outputs),
      state_(std::move(state)) {}

bool BeamSearch::IsEos(int32_t token) const {
  const std::vector<int32_t>& ids = params_->eos_token_ids;
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

double BeamSearch::Score(double cum_logprob, int64_t num_outputs, int32_t last_token) const {
  const int64_t length = prompt_len_ + num_outputs - (IsEos(last_token) ? 1 : 0);
  return cum_logprob / std::pow(static_cast<double>(std::max<int64_t>(length, 1)), params_->length_penalty);
}

Beam BeamSearch::Extend(const Candidate& candidate, const Logprobs& from, bool with_token) const {
  Beam beam = state_.live[candidate.source];
  beam.cum_logprob = candidate.cum_logprob;
  if (!with_token) return beam;
  beam.outputs.push_back(candidate.token);
  if (params_->num_logprobs < 0) return beam;
  const auto begin = from.token_ids.begin();
  const size_t place = std::find(begin + 1, from.token_ids.end(), candidate.token) - begin;
  beam.logprobs.push_back(std::make_shared<const Logprobs>(Trim(from, place, params_->num_logprobs)));
  return beam;
}

// Of equally good beams the earlier beam goes first.
void BeamSearch::Insert(Beam beam, size_t most, std::vector<Beam>* sorted) {
  const auto place = std::upper_bound(sorted->begin(), sorted->end(), beam.score,
                                      [](double score, const Beam& other) { return score > other.score; });
  sorted->insert(place, std::move(beam));
  if (sorted->size() > most) sorted->pop_back();
}

void BeamSearch::End(const Candidate& candidate, const Logprobs& from) {
  Beam beam = Extend(candidate, from, params_->includes_eos);
  const int32_t last = beam.outputs.empty() ? last_prompt_token_ : beam.outputs.back();
  beam.score = Score(beam.cum_logprob, static_cast<int64_t>(beam.outputs.size()), last);
  beam.finish_reason = FinishReason::kStop;
  beam.stop_token_id = candidate.token;
  Insert(std::move(beam), params_->width, &state_.ended);
}

std::vector<int32_t> BeamSearch::Advance(const std::vector<Logprobs>& candidates) {
  SOMNUS_CHECK(candidates.size() == state_.live.size());
  std::vector<Candidate> going_on;
  for (size_t source = 0; source < candidates.size(); ++source) {
    const Logprobs& from = candidates[source];
    for (size_t i = 1; i < from.token_ids.size(); ++i) {
      const Candidate candidate = {static_cast<int32_t>(source), from.token_ids[i],
                                   state_.live[source].cum_logprob + from.logprobs[i]};
      if (!std::isfinite(candidate.cum_logprob)) continue;
      if (!params_->ignore_eos && IsEos(candidate.token)) {
        End(candidate, from);
      } else {
        going_on.push_back(candidate);
      }
    }
  }
  const auto is_better = [](const Candidate& a, const Candidate& b) { return a.cum_logprob > b.cum_logprob; };
  std::stable_sort(going_on.begin(), going_on.end(), is_better);
  if (going_on.size() > static_cast<size_t>(params_->width)) going_on.resize(params_->width);
  std::vector<Beam> live;
  std::vector<int32_t> sources;
  for (const Candidate& candidate : going_on) {
    live.push_back(Extend(candidate, candidates[candidate.source], /*with_token=*/true));
    sources.push_back(candidate.source);
  }
  state_.live = std::move(live);
  return sources;
}

double BeamSearch::BestAttainable() const {
  const Beam& best = state_.live.front();
  const auto num_outputs = static_cast<int64_t>(best.outputs.size());
  const bool may_grow = params_->early_stopping == EarlyStopping::kNever && params_->length_penalty > 0;
  // The sum only falls, so that a longer answer is better only where its length counts for it.
  if (may_grow) return best.cum_logprob / std::pow(prompt_len_ + max_outputs_, params_->length_penalty);
  return Score(best.cum_logprob, num_outputs, best.outputs.back());
}

bool BeamSearch::StopsEarly() const {
  if (state_.ended.size() < static_cast<size_t>(params_->width)) return false;
  return params_->early_stopping == EarlyStopping::kAtWidth || state_.live.empty() ||
         state_.ended.back().score >= BestAttainable();
}

bool BeamSearch::done() const {
  if (state_.live.empty()) return true;
  const auto num_outputs = static_cast<int64_t>(state_.live.front().outputs.size());
  return num_outputs >= max_outputs_ || (num_outputs > 0 && StopsEarly());
}

std::vector<Beam> BeamSearch::Answers() const {
  std::vector<Beam> answers = state_.ended;
  if (StopsEarly()) return answers;
  for (const Beam& beam : state_.live) {
    Beam answer = beam;
    answer.score = Score(beam.cum_logprob, static_cast<int64_t>(beam.outputs.size()), beam.outputs.back());
    Insert(std::move(answer), params_->width, &answers);
  }
  return answers;
}

}  // namespace somnus
