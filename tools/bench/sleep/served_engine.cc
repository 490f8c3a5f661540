#include "tools/bench/sleep/served_engine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/monotonic.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr absl::Duration kStartLimit = absl::Minutes(5);
constexpr absl::Duration kEndLimit = absl::Seconds(30);
constexpr absl::Duration kPoll = absl::Milliseconds(2);
constexpr int kPromptTokens = 64;
// Below the ports that the kernel gives to outgoing connections.
constexpr int kFirstPort = 10000, kLastPort = 32000;

bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return free;
}

int FreePort() {
  std::random_device random;
  int port = 0;
  do {
    port = kFirstPort + static_cast<int>(random() % (kLastPort - kFirstPort));
  } while (!IsFree(port));
  return port;
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
  if (pid > 0) return pid;
  const int null = open("/dev/null", O_RDWR);
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  execv(argv[0], argv.data());
  _exit(127);
}

// The children of all threads of `pid`.
std::vector<pid_t> Children(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    std::ifstream file(task.path() / "children");
    for (pid_t child; file >> child;) children.push_back(child);
  }
  return children;
}

absl::StatusOr<int64_t> PssOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/smaps_rollup"));
  int64_t kib = 0;
  for (std::string word; file >> word;) {
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  return absl::UnavailableError(absl::StrCat("the memory of process ", pid));
}

MeasuredTransition Read(const nlohmann::json& report) {
  MeasuredTransition measured;
  for (const nlohmann::json& rank : report.at("ranks")) {
    const nlohmann::json& seconds = rank.at("seconds");
    for (const auto& [name, longest] : {std::pair{"prepare", &measured.prepare},
                                        {"commit", &measured.commit},
                                        {"copy", &measured.copy},
                                        {"map", &measured.map},
                                        {"release", &measured.release},
                                        {"read", &measured.read}})
      *longest = std::max(*longest, seconds.at(name).get<double>());
    for (const auto& [tag, bytes] : rank.at("tags").items()) {
      measured.freed[tag] += bytes.at("freed_bytes").get<int64_t>();
      measured.mapped[tag] += bytes.at("mapped_bytes").get<int64_t>();
    }
  }
  return measured;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedEngine>> ServedEngine::Start(const ServedEngineOptions& options) {
  const int port = FreePort(), admin_port = FreePort(), control_port = FreePort();
  std::vector<std::string> command = {options.program,
                                      "serve",
                                      options.model,
                                      absl::StrCat("--port=", port),
                                      absl::StrCat("--admin-port=", admin_port),
                                      "--grpc-port=0",
                                      absl::StrCat("--control-port=", control_port),
                                      absl::StrCat("--workers=local:", options.workers),
                                      "--log-level=error"};
  command.insert(command.end(), options.flags.begin(), options.flags.end());
  const MonotonicTime begin = MonotonicNow();
  ASSIGN_OR_RETURN(const pid_t pid, Spawn(command));
  std::unique_ptr<ServedEngine> engine(new ServedEngine(pid, port, admin_port, control_port));
  RETURN_IF_ERROR(engine->AwaitFirstToken());
  engine->cold_start_seconds_ = absl::ToDoubleSeconds(MonotonicNow() - begin);
  return engine;
}

ServedEngine::ServedEngine(pid_t pid, int port, int admin_port, int control_port)
    : pid_(pid), control_port_(control_port), api_({.port = port}), admin_({.port = admin_port}) {}

ServedEngine::~ServedEngine() {
  kill(pid_, SIGTERM);
  const MonotonicTime begin = MonotonicNow();
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (MonotonicNow() - begin > kEndLimit) kill(pid_, SIGKILL);
    absl::SleepFor(kPoll);
  }
}

absl::Status ServedEngine::AwaitFirstToken() {
  const MonotonicTime begin = MonotonicNow();
  while (true) {
    const absl::StatusOr<double> answered = FirstToken();
    if (answered.ok()) return absl::OkStatus();
    if (waitpid(pid_, nullptr, WNOHANG) != 0) return absl::UnavailableError("the server has ended");
    if (MonotonicNow() - begin > kStartLimit) return answered.status();
    absl::SleepFor(kPoll);
  }
}

absl::Status ServedEngine::Answer(const std::string& model, int num_tokens) const {
  nlohmann::json body = {{"prompt", std::vector<int32_t>(kPromptTokens, 7)},
                         {"max_tokens", num_tokens},
                         {"ignore_eos", true},
                         {"temperature", 0}};
  if (!model.empty()) body["model"] = model;
  ASSIGN_OR_RETURN(const HttpResponse response, api_.Post("/v1/completions", body.dump()));
  return response.status == 200 ? absl::OkStatus() : absl::UnavailableError(response.body);
}

absl::StatusOr<double> ServedEngine::FirstToken(const std::string& model) {
  // The first token differs, so that the prefix cache has nothing of the prompt.
  std::vector<int32_t> prompt(kPromptTokens, 5);
  prompt[0] = 10 + next_prompt_++ % 400;
  nlohmann::json body = {{"prompt", prompt}, {"max_tokens", 1}, {"temperature", 0}};
  if (!model.empty()) body["model"] = model;
  const MonotonicTime begin = MonotonicNow();
  ASSIGN_OR_RETURN(const HttpResponse response, api_.Post("/v1/completions", body.dump()));
  if (response.status != 200) return absl::UnavailableError(response.body);
  return absl::ToDoubleSeconds(MonotonicNow() - begin);
}

absl::StatusOr<MeasuredTransition> ServedEngine::Sleep(int level) {
  return Transit(absl::StrCat("/sleep?level=", level));
}

absl::StatusOr<MeasuredTransition> ServedEngine::WakeUp() { return Transit("/wake_up"); }

absl::StatusOr<double> ServedEngine::ReloadWeights() const {
  const MonotonicTime begin = MonotonicNow();
  RETURN_IF_ERROR(Call("/reload_weights").status());
  return absl::ToDoubleSeconds(MonotonicNow() - begin);
}

absl::StatusOr<MeasuredTransition> ServedEngine::Transit(const std::string& target) const {
  const MonotonicTime begin = MonotonicNow();
  ASSIGN_OR_RETURN(const std::string report, Call(target));
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
  MeasuredTransition measured = Read(nlohmann::json::parse(report));
  measured.seconds = seconds;
  return measured;
}

absl::StatusOr<std::string> ServedEngine::Call(const std::string& target) const {
  ASSIGN_OR_RETURN(HttpResponse response, admin_.Post(target, ""));
  if (response.status != 200) return absl::UnavailableError(absl::StrCat(target, ": ", response.body));
  return std::move(response.body);
}

absl::StatusOr<double> ServedEngine::Metric(const std::string& name, const std::string& label) const {
  ASSIGN_OR_RETURN(const HttpResponse response, api_.Get("/metrics"));
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(response.body, '\n')) {
    const bool named = absl::StartsWith(line, absl::StrCat(name, "{")) || absl::StartsWith(line, name + " ");
    double value;
    if (named && absl::StrContains(line, label) && absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value))
      sum += value;
  }
  return sum;
}

absl::StatusOr<int64_t> ServedEngine::WorkersPss() const {
  int64_t sum = 0;
  for (const pid_t worker : Children(pid_)) {
    ASSIGN_OR_RETURN(const int64_t pss, PssOf(worker));
    sum += pss;
  }
  return sum;
}

}  // namespace somnus
