#pragma once
// The contents of the fake engine's outputs.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/request/request.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

inline Logprobs FakeLogprobs(int32_t id, int count) {
  Logprobs logprobs{{id}, {-0.25f}, 1};
  for (int i = 0; i < count; ++i) {
    logprobs.token_ids.push_back(i == 0 ? id : (id + i) % 256);
    logprobs.logprobs.push_back(-0.25f - static_cast<float>(i));
  }
  return logprobs;
}

// Answer i of a beam search is the prompt without its first i tokens; odd answers have ended.
inline std::vector<Beam> FakeBeams(const EngineRequest& request) {
  const BeamSearchParams& params = *request.sampling->beam_search;
  std::vector<Beam> beams(static_cast<size_t>(params.width));
  for (size_t i = 0; i < beams.size(); ++i) {
    const size_t first = std::min(i, request.prompt.size() - 1);
    beams[i].outputs.assign(request.prompt.begin() + static_cast<int64_t>(first), request.prompt.end());
    if (i % 2 == 1 && params.includes_eos) beams[i].outputs.push_back(256);
    if (i % 2 == 1) beams[i].finish_reason = FinishReason::kStop;
    if (i % 2 == 1) beams[i].stop_token_id = 256;
    for (const int32_t id : beams[i].outputs) {
      if (params.num_logprobs < 0) break;
      beams[i].logprobs.push_back(std::make_shared<const Logprobs>(FakeLogprobs(id, params.num_logprobs)));
    }
  }
  return beams;
}

// The last output of a beam search.
inline RequestOutput FakeAnswers(const EngineRequest& request) {
  RequestOutput output{.beams = FakeBeams(request)};
  output.finish_reason = output.beams[0].finish_reason;
  return output;
}

// The report of a call that changed the weights, which have 7 bytes.
inline TransitionReport FakeReport(TagOutcome outcome, TagReport bytes) {
  TransitionReport report;
  report.tags["weights"] = outcome;
  if (outcome.changed) report.ranks = {{.tags = {{"weights", bytes}}}};
  return report;
}

inline constexpr int32_t kFakeWidth = 4;  // of a fake model's hidden states

// The vector of a request that pools: the first token, the last token, their number, and the pooling.
inline RequestOutput FakePooled(const EngineRequest& request, int64_t weights_version) {
  const std::vector<int32_t>& prompt = request.prompt;
  RequestOutput output;
  for (const int64_t number : {int64_t{prompt.front()}, int64_t{prompt.back()},
                               static_cast<int64_t>(prompt.size()), static_cast<int64_t>(request.pooling)})
    output.pooled.push_back(static_cast<float>(number));
  output.finish_reason = FinishReason::kStop;
  output.weights_version = weights_version;
  return output;
}

// The next token of a request that has `made` tokens so far.
inline RequestOutput FakeOutput(const EngineRequest& request, int32_t made, int64_t weights_version) {
  const SamplingParams& sampling = *request.sampling;
  const std::vector<int32_t>& prompt = request.prompt;
  const int32_t id = prompt[static_cast<size_t>(made) % prompt.size()];
  RequestOutput output;
  if (made == 0 && sampling.num_prompt_logprobs >= 0) {
    output.prompt_logprobs.resize(1);
    for (size_t i = 1; i < prompt.size(); ++i)
      output.prompt_logprobs.push_back(FakeLogprobs(prompt[i], sampling.num_prompt_logprobs));
  }
  output.token_ids = {id};
  output.weights_version = weights_version;
  if (sampling.num_logprobs >= 0) output.logprobs = {FakeLogprobs(id, sampling.num_logprobs)};
  const auto in = [id](const std::vector<int32_t>& ids) {
    return std::count(ids.begin(), ids.end(), id) > 0;
  };
  const bool may_stop = made + 1 >= sampling.min_tokens;
  if (may_stop && in(sampling.eos_token_ids)) {
    output.finish_reason = FinishReason::kStop;
  } else if (may_stop && in(sampling.stop_token_ids)) {
    output.finish_reason = FinishReason::kStop;
    output.stop_token_id = id;
  } else if (made + 1 >= request.max_tokens) {
    output.finish_reason = FinishReason::kLength;
  }
  return output;
}

}  // namespace somnus
