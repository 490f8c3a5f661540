#pragma once
// The flags of commands that operate a server, each over ControlService.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/flags.h"
#include "proto/control.pb.h"
#include "tools/cli/server.h"

namespace somnus::cli {

// Every command has some of these options.
struct ControlOptions {
  ServerOptions server;
  absl::Duration timeout = absl::Minutes(2);
  std::string model;
  int32_t level = 1;
  std::string tags;
  v1::SleepMode mode = v1::SLEEP_MODE_KEEP;
  std::string path;
  int64_t weights_version = 0;
  bool clear_cache = true;
  bool force = false;
  bool load_weights = true;
  absl::Duration grace = absl::Seconds(10);
  bool json = false;
  bool ready = false;
};

// The flags of one command: the command's own, and the flags that all these commands share.
FlagTable ControlTable(ControlOptions* o, const std::string& name, std::string about, std::vector<Flag> own);
Flag ModeFlag(ControlOptions* o);
// Parses `args` into the table's variables and runs the command, unless the arguments (--help, an error) end
// the program before. Returns the process's exit code.
int RunControl(const FlagTable& table, const std::vector<std::string>& args,
               const std::function<absl::StatusOr<int>()>& command,
               std::vector<std::string>* positional = nullptr);

// A request about the model that was named.
template <typename Request>
Request Named(const ControlOptions& options) {
  Request request;
  request.set_model(options.model);
  return request;
}

}  // namespace somnus::cli
