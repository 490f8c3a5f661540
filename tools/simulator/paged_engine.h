#pragma once
// The coordinator's own Scheduler and BlockManager under a modelled worker. The `n` choices of a request are
// sequences of their own, which fork the first choice, as with the API; `beams` make a request a beam search,
// which goes on until the last token.

#include <memory>
#include <vector>

#include "coordinator/scheduler/scheduler.h"
#include "proto/step.pb.h"
#include "tools/simulator/serving_load.h"
#include "tools/simulator/simulated_engine.h"

namespace somnus {

// The tokens of a request's prompt: first the tokens of the request's group, then tokens that no other prompt
// shares.
std::vector<int32_t> PromptTokens(const LoadRequest& request);

// The scheduler's part of the options; the rest has defaults.
SchedulerOptions ToSchedulerOptions(const EngineOptions& options);

// The model's continuations of a beam: their probabilities fall geometrically, by a factor that is drawn for
// each beam and token so that the likeliest has two thirds on average.
class BeamCandidates {
 public:
  explicit BeamCandidates(uint64_t seed) : random_(seed) {}
  // In the form of workers' reports: a chosen token, which no search uses, and `count` further tokens, the
  // likeliest first.
  v1::StepLogprobs Draw(int32_t count);

 private:
  LoadRandom random_;
};

struct PagedEngineOptions {
  int32_t n = 1;                 // choices of each request
  int32_t beams = 0;             // 0: the choices are sampled
  uint64_t seed = 1;             // of the beams' probabilities
  PreemptionPrices prices = {};  // where the scheduler's options do not say how preemptions are done
};

std::unique_ptr<SimulatedEngine> MakePagedEngine(const SchedulerOptions& options,
                                                 const PagedEngineOptions& paged = {});

}  // namespace somnus
