#pragma once
// Clients of a simulated engine, which check every output.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/engine/auto_sleep_options.h"
#include "coordinator/engine/engine.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

// Prompts begin with a shared prefix now and then: `number` is from 1 to kNumSharedPrefixes.
constexpr int kNumSharedPrefixes = 3;
std::vector<int32_t> SharedPrefix(int64_t number);

// A request and the client's tokens, which must be tokens of the weights with the version in each output.
class Client : public OutputSink {
 public:
  // The prompt now and then begins like other prompts, so that prefixes are shared.
  Client(Site* site, int number, int model = 0);

  // Asks a new engine, and gets all tokens again.
  void Begin();
  EngineRequest MakeRequest();
  void OnOutput(RequestOutput output) override;

  const std::string& id() const { return id_; }
  int model() const { return model_; }
  bool ended() const { return ended_; }
  // How often another thread has gone on with the request than before: each replica has a separate thread.
  int num_moves() const { return num_moves_; }
  // The engine has ended; the next engine counts anew.
  void ForgetMoves() { num_moves_ = 0; }
  // An error is allowed from now on.
  void NoteAbort() { may_abort_ = true; }

 private:
  void NoteThread();
  void CheckToken(int32_t token, int64_t weights_version);
  void CheckEnd(const RequestOutput& output);

  Site& site_;
  const int model_;
  const std::string id_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> tokens_;  // the prompt, and the received tokens
  int32_t max_tokens_ = 0;
  int32_t num_tokens_ = 0;
  uint64_t thread_ = 0;  // that gave the last tokens
  int num_moves_ = 0;
  bool ended_ = false;
  bool may_abort_ = false;
};

// A client's thread: asks the engine within `span`, again where the engine refuses requests while asleep, and
// now and then gives the request up.
void Ask(Site* site, Engine* engine, const std::shared_ptr<Client>& client, SleepArrivals arrivals,
         absl::Duration span);

}  // namespace somnus::simulation
