#pragma once
// `somnus serve` as a child process, and the measurements that an operator can make.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/http/client.h"

namespace somnus {

struct ServedEngineOptions {
  std::string program;  // of `somnus`
  std::string model;
  int workers = 2;
  std::vector<std::string> flags;  // further flags of `somnus serve`
};

// The times of a sleep or a wake-up.
struct MeasuredTransition {
  double seconds = 0;  // as the caller sees
  // The longest times of all ranks, by their reports: whole seconds of both phases, and the parts of these.
  double prepare = 0, commit = 0;
  double copy = 0, map = 0, release = 0, read = 0;
  std::map<std::string, int64_t> freed, mapped;  // bytes over all ranks, by tag
};

// The destructor ends the processes. For one thread.
class ServedEngine {
 public:
  // Returns once the engine has answered a first request.
  static absl::StatusOr<std::unique_ptr<ServedEngine>> Start(const ServedEngineOptions& options);
  ~ServedEngine();
  ServedEngine(const ServedEngine&) = delete;

  // From the start of the process to the first token.
  double cold_start_seconds() const { return cold_start_seconds_; }
  int control_port() const { return control_port_; }
  // Seconds to the single token that follows a new prompt. `model`: by name; empty: the first model.
  absl::StatusOr<double> FirstToken(const std::string& model = "");
  // Asks for an answer of so many tokens, and waits for the answer. Thread safe.
  absl::Status Answer(const std::string& model, int num_tokens) const;
  absl::StatusOr<MeasuredTransition> Sleep(int level);
  absl::StatusOr<MeasuredTransition> WakeUp();
  // Seconds until every rank has read the weights again, while the engine is awake.
  absl::StatusOr<double> ReloadWeights() const;
  // The value of a metric, summed over the series that have `label` (NAME="VALUE"; empty: all).
  absl::StatusOr<double> Metric(const std::string& name, const std::string& label = "") const;
  // The workers' own memory and their part of shared memory, as the kernel counts, in bytes.
  absl::StatusOr<int64_t> WorkersPss() const;

 private:
  ServedEngine(pid_t pid, int port, int admin_port, int control_port);

  absl::Status AwaitFirstToken();
  // One call of the operators' port; returns the answer's body.
  absl::StatusOr<std::string> Call(const std::string& target) const;
  absl::StatusOr<MeasuredTransition> Transit(const std::string& target) const;

  const pid_t pid_;
  const int control_port_;
  const HttpClient api_, admin_;
  double cold_start_seconds_ = 0;
  int32_t next_prompt_ = 0;
};

}  // namespace somnus
