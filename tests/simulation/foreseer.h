#pragma once
// A drafter that knows the simulated model's samples with the weights of the latest version, and is wrong now
// and then: at every seventh position, and wherever the weights have changed meanwhile.

#include <cstdint>
#include <vector>

#include "coordinator/scheduler/drafter.h"
#include "tests/fakes/fake_worker.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class Foreseer : public Drafter {
 public:
  Foreseer(const Site* site, int model) : site_(*site), model_(model) {}

  void Propose(absl::Span<const int32_t> tokens, int32_t most, std::vector<int32_t>* draft) override {
    const auto weights = static_cast<uint64_t>(site_.weights.at(model_).rbegin()->second);
    *draft =
        FakeWorker::ReferenceTokens({tokens.begin(), tokens.end()}, most, site_.model.vocab_size, weights);
    for (size_t i = 0; i < draft->size(); ++i) {
      if ((tokens.size() + i) % 7 == 0) (*draft)[i] = 0;
    }
  }

 private:
  const Site& site_;
  const int model_;
};

}  // namespace somnus::simulation
