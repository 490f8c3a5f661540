#pragma once
// The result of an undisturbed beam search over the fake worker's model.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/scheduler/beam_search.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {

inline EngineRequest BeamRequest(const std::string& id, int32_t width, int32_t prompt_len, int32_t max_tokens,
                                 int32_t first = 1) {
  EngineRequest request = MakeRequest(id, prompt_len, max_tokens, first);
  SamplingParams* sampling = OwnSampling(&request);
  sampling->temperature = 0;
  sampling->num_logprobs = 2 * width;
  BeamSearchParams params{.width = width};
  for (int32_t token = 0; token < 1000; token += 20) params.eos_token_ids.push_back(token);
  sampling->beam_search = params;
  return request;
}

inline BeamSearchParams* ParamsOf(EngineRequest* request) { return &*OwnSampling(request)->beam_search; }

inline std::vector<Beam> ReferenceBeams(const EngineRequest& request, int32_t max_model_len = 100) {
  const BeamSearchParams& params = *request.sampling->beam_search;
  const int64_t left = max_model_len - static_cast<int64_t>(request.prompt.size());
  BeamSearch search(&params, request.prompt, std::min<int64_t>(request.max_tokens, left));
  while (!search.done()) {
    std::vector<Logprobs> candidates;
    for (const Beam& beam : search.live()) {
      std::vector<int32_t> tokens = request.prompt;
      tokens.insert(tokens.end(), beam.outputs.begin(), beam.outputs.end());
      candidates.push_back(FromMessage(FakeWorker::ReferenceCandidates(tokens, 2 * params.width)));
    }
    search.Advance(candidates);
  }
  return search.Answers();
}

inline void ExpectExactBeams(const EngineRequest& request, const Answer& answer) {
  const std::vector<Beam> expected = ReferenceBeams(request);
  EXPECT_EQ(answer.error, absl::OkStatus()) << request.id;
  ASSERT_EQ(answer.beams.size(), expected.size()) << request.id;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(answer.beams[i].outputs, expected[i].outputs) << request.id << ", answer " << i;
    EXPECT_EQ(answer.beams[i].cum_logprob, expected[i].cum_logprob) << request.id;
    EXPECT_EQ(answer.beams[i].finish_reason, expected[i].finish_reason) << request.id;
  }
  EXPECT_EQ(answer.reason, expected[0].finish_reason) << request.id;
}

// Expects the exact answer of any request, with beams or without.
inline void ExpectExactAnswer(const EngineRequest& request, const Harness& harness) {
  const auto answer = harness.answers.find(request.id);
  ASSERT_NE(answer, harness.answers.end()) << request.id;
  if (request.sampling->beam_search.has_value()) return ExpectExactBeams(request, answer->second);
  EXPECT_EQ(answer->second.tokens, Reference(request)) << request.id;
}

}  // namespace somnus
