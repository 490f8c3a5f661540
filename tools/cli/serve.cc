#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "proto/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

// The coordinator beside this binary: <bin>/tools/somnus -> <bin>/coordinator/coordinator.
absl::StatusOr<std::string> CoordinatorPath() {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self));
  if (n <= 0 || n == sizeof(self)) return absl::InternalError("cannot read /proc/self/exe");
  absl::string_view folder(self, n);
  for (int up = 0; up < 2; ++up) folder = folder.substr(0, folder.rfind('/'));
  std::string path = absl::StrCat(folder, "/coordinator/coordinator");
  if (access(path.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": ", strerror(errno), "; build it with: bazel build //coordinator //worker"));
  }
  return path;
}

absl::Status CheckModel(const std::string& model) {
  struct stat info;
  if (stat(model.c_str(), &info) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model ", model, ": ", strerror(errno),
                                                 " (give a Hugging Face directory or a .gguf file)"));
}

// The flags as the coordinator spells them (underscores), --model in front. Flags that this help does not
// know are passed on too: the coordinator judges them.
absl::StatusOr<std::vector<std::string>> CoordinatorArgs(const std::vector<std::string>& args) {
  std::vector<std::string> flags;
  std::vector<std::string> models;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (!absl::ConsumePrefix(&arg, "--")) {
      models.push_back(args[i]);
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string name = WithHyphens(arg.substr(0, equals));
    std::string value(equals == arg.npos ? "" : arg.substr(equals + 1));
    bool has_value = equals != arg.npos;
    const auto& known = ServeCommand().flags;
    const auto flag = std::find_if(known.begin(), known.end(), [&](const Flag& f) { return f.name == name; });
    if (!has_value && flag != known.end() && !flag->value.empty()) {
      const bool is_switch = absl::StartsWith(flag->value, "[");
      if (!is_switch && i + 1 >= args.size()) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: ", flag->value));
      }
      if (!is_switch) value = args[++i];
      has_value = !is_switch;
    }
    if (name == "model") {
      models.push_back(value);
      continue;
    }
    flags.push_back(absl::StrCat("--", absl::StrReplaceAll(name, {{"-", "_"}}), has_value ? "=" : "", value));
  }
  if (models.size() != 1) {
    return absl::InvalidArgumentError(
        models.empty() ? "which model? usage: somnus serve MODEL [flags]"
                       : absl::StrCat("one model only, not '", models[0], "' and '", models[1], "'"));
  }
  RETURN_IF_ERROR(CheckModel(models[0]));
  flags.insert(flags.begin(), absl::StrCat("--model=", models[0]));
  return flags;
}

}  // namespace

const Command& ServeCommand() {
  static const Command* command = new Command{
      "serve",
      "somnus serve MODEL [flags]",
      "serve a model: one coordinator, N workers",
      "Serves MODEL, a Hugging Face directory or a .gguf file, until Ctrl-C or SIGTERM. GET /health answers "
      "200 as\n"
      "soon as requests are served. Names of flags are vLLM's where vLLM has one; hyphens and underscores "
      "are the\n"
      "same. `--flag value` and `--flag=value` both work.\n\n"
      "  somnus serve SmolLM2-135M-Instruct.Q4_1.gguf --workers=local:2\n"
      "  somnus serve ./Qwen3-0.6B --dtype bfloat16 --max-num-seqs 64 --port 9000",
      {
          {"host", "ADDRESS", "where the OpenAI HTTP API listens (127.0.0.1)"},
          {"port", "PORT", "OpenAI HTTP API (8000)"},
          {"admin-port", "PORT", "operators' HTTP routes, on loopback (8001)"},
          {"grpc-port", "PORT", "gRPC: inference, control, workers' registration (50051)"},
          {"workers", "local:N", "start N workers on this machine"},
          {"tensor-parallel-size", "N", "the same as --workers=local:N"},
          {"threads-per-worker", "N", "CPU threads of each worker"},
          {"device", "auto|cpu|cuda", "what workers run on (auto)"},
          {"dtype", "auto|bfloat16|float16|float32", "element type of weights and activations (auto)"},
          {"served-model-name", "NAME", "what clients call the model"},
          {"max-model-len", "TOKENS", "longest prompt and answer together"},
          {"max-num-seqs", "N", "sequences that run at once"},
          {"max-num-batched-tokens", "N", "token budget of one step"},
          {"block-size", "TOKENS", "tokens per KV block (16)"},
          {"kv-cache-memory", "BYTES|4GiB", "size of the KV cache over all ranks"},
          {"enable-prefix-caching", "[=true|false]", "reuse the blocks of equal prompt beginnings"},
          {"overlap", "0|1", "schedule the next step while this one runs (1)"},
          {"seed", "N", "seed of requests that name none"},
          {"api-key", "KEY", "clients must send it as a bearer token"},
          {"model", "MODEL", "the same as the argument MODEL"},
      }};
  return *command;
}

int RunServe(const std::vector<std::string>& args) {
  const absl::StatusOr<std::vector<std::string>> flags = CoordinatorArgs(args);
  if (!flags.ok()) return Fail(flags.status());
  const absl::StatusOr<std::string> path = CoordinatorPath();
  if (!path.ok()) return Fail(path.status());
  std::vector<char*> argv{const_cast<char*>(path->c_str())};
  for (const std::string& flag : *flags) argv.push_back(const_cast<char*>(flag.c_str()));
  argv.push_back(nullptr);
  execv(path->c_str(), argv.data());
  return Fail(absl::InternalError(absl::StrCat(*path, ": ", strerror(errno))));
}

}  // namespace somnus::cli
