#include "tools/bench/decode/batched_peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace somnus {
namespace {

constexpr size_t kMaxOutput = 1 << 20;

// Runs the program and returns its stdout, up to kMaxOutput bytes and a little more. Standard error is
// discarded.
absl::StatusOr<std::string> RunAndRead(const std::vector<std::string>& args) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0)
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, args[0].c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_fds[1]);
  if (error != 0) {
    close(pipe_fds[0]);
    return absl::NotFoundError(absl::StrCat(args[0], ": ", std::strerror(error)));
  }
  std::string output;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe_fds[0], buffer, sizeof(buffer))) > 0;) {
    if (output.size() < kMaxOutput) output.append(buffer, n);
  }
  close(pipe_fds[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return absl::InternalError(absl::StrCat(args[0], " failed"));
  return output;
}

// llama.cpp gives each sequence a context of its own, a multiple of so many tokens.
constexpr int64_t kContextStep = 256;

int64_t ContextOf(int64_t batch, int64_t tokens) {
  return batch * ((tokens + kContextStep - 1) / kContextStep * kContextStep);
}

}  // namespace

std::vector<std::string> FlashAttentionFlags(absl::string_view help) {
  for (const absl::string_view text : absl::StrSplit(help, '\n')) {
    const absl::string_view line = absl::StripLeadingAsciiWhitespace(text);
    if (!absl::StartsWith(line, "-fa,")) continue;
    if (absl::StrContains(line, "on|off")) return {"-fa", "on"};
    if (absl::StrContains(line, "0|1")) return {"-fa", "1"};
    return {"-fa"};
  }
  return {};
}

absl::StatusOr<BatchedPeer> BatchedPeer::Find(const std::string& binary, const std::string& model,
                                              int threads) {
  ASSIGN_OR_RETURN(const std::string help, RunAndRead({binary, "--help"}));
  std::vector<std::string> command = {binary, "-m", model, "-t", absl::StrCat(threads)};
  for (std::string& flag : FlashAttentionFlags(help)) command.push_back(std::move(flag));
  return BatchedPeer(std::move(command));
}

absl::StatusOr<PeerSample> BatchedPeer::Run(int32_t batch, int32_t prompt_tokens, int32_t new_tokens) const {
  const int64_t context = ContextOf(batch, int64_t{prompt_tokens} + new_tokens);
  std::vector<std::string> args = command_;
  args.insert(args.end(),
              {"-c", absl::StrCat(context), "-npp", absl::StrCat(prompt_tokens), "-ntg",
               absl::StrCat(new_tokens), "-npl", absl::StrCat(batch), "--output-format", "jsonl"});
  ASSIGN_OR_RETURN(const std::string output, RunAndRead(args));
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    const nlohmann::json json =
        nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("speed_tg") || !json.contains("speed_pp")) continue;
    if (!json["speed_tg"].is_number() || !json["speed_pp"].is_number()) continue;
    return PeerSample{json["speed_pp"].get<double>(), json["speed_tg"].get<double>()};
  }
  return absl::InternalError(absl::StrCat(command_[0], " printed no result"));
}

}  // namespace somnus
