#pragma once
// `somnus serve` as a child process, and what its operator can measure of it.

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
  std::vector<std::string> flags;  // further ones of `somnus serve`
};

// What a sleep or a wake-up took.
struct MeasuredTransition {
  double seconds = 0;  // as its caller sees it
  // The longest of all ranks, as they report it: whole seconds of both phases, and what is in them.
  double prepare = 0, commit = 0;
  double copy = 0, map = 0, release = 0, read = 0;
  std::map<std::string, int64_t> freed, mapped;  // bytes over all ranks, by tag
};

// Ends its processes when it is destroyed. For one thread.
class ServedEngine {
 public:
  // Returns once it has answered a first request.
  static absl::StatusOr<std::unique_ptr<ServedEngine>> Start(const ServedEngineOptions& options);
  ~ServedEngine();
  ServedEngine(const ServedEngine&) = delete;

  // From the start of the process to its first token.
  double cold_start_seconds() const { return cold_start_seconds_; }
  int control_port() const { return control_port_; }
  // Seconds to the one token that follows a prompt which was not asked before. `model`: by name; empty: the
  // first one.
  absl::StatusOr<double> FirstToken(const std::string& model = "");
  // Asks for an answer of so many tokens, and waits for it. Thread safe.
  absl::Status Answer(const std::string& model, int num_tokens) const;
  absl::StatusOr<MeasuredTransition> Sleep(int level);
  absl::StatusOr<MeasuredTransition> WakeUp();
  // Seconds until every rank has read its weights again, while the engine is awake.
  absl::StatusOr<double> ReloadWeights() const;
  // The value of a metric, summed over those of its series that have `label` (NAME="VALUE"; empty: all).
  absl::StatusOr<double> Metric(const std::string& name, const std::string& label = "") const;
  // What the kernel counts as the workers' own memory and their part of what they share, in bytes.
  absl::StatusOr<int64_t> WorkersPss() const;

 private:
  ServedEngine(pid_t pid, int port, int admin_port, int control_port);

  absl::Status AwaitFirstToken();
  // One call of the operators' port; the body of its answer.
  absl::StatusOr<std::string> Call(const std::string& target) const;
  absl::StatusOr<MeasuredTransition> Transit(const std::string& target) const;

  const pid_t pid_;
  const int control_port_;
  const HttpClient api_, admin_;
  double cold_start_seconds_ = 0;
  int32_t next_prompt_ = 0;
};

}  // namespace somnus
