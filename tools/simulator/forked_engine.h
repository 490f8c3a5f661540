#pragma once
// Beam search over the coordinator's own BlockManager, since the scheduler has none: the sequences of a
// request share blocks by Fork, and write into blocks of their own by MakeWritable. Which request computes
// when is decided here, as the paper's scheduler does it: first come, first served; the prompt once, in
// chunks; all sequences of a request together or none; the latest request is preempted, and computed again,
// prompt and outputs.

#include <memory>

#include "tools/simulator/simulated_engine.h"

namespace somnus {

// Which sequences go on in beam search. Each of k beams has k continuations, whose probabilities fall
// geometrically, by a factor that is drawn for each beam at each token; the k best by the product of all
// probabilities are the next beams.
class BeamChoice {
 public:
  BeamChoice(int32_t beams, uint64_t seed) : random_(seed), scores_(beams, 0) {}
  // Returns the parent of each of the next beams, in ascending order.
  std::vector<int32_t> Next();

 private:
  LoadRandom random_;
  std::vector<double> scores_;
};

// Each request has options.beams sequences, which begin after the first token. Without beams it has
// options.n, which never end or fork again.
std::unique_ptr<SimulatedEngine> MakeForkedEngine(const EngineOptions& options);

}  // namespace somnus
