#include "tests/worker/moments.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"

namespace somnus {
namespace {

constexpr absl::Duration kFaultPoll = absl::Milliseconds(5);

struct MomentFault {
  std::string line;
  std::string moment, action;
  int nth = 1, rank = -1, times = 1;
};

std::vector<std::string> Lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Nullopt of a line about something else.
std::optional<MomentFault> Parse(const std::string& line) {
  std::istringstream words(line);
  std::string at, when, what, times;
  words >> at >> when >> what >> times;
  if (at != "at") return std::nullopt;
  MomentFault fault{.line = line};
  const std::pair<std::string, std::string> moment = absl::StrSplit(when, absl::MaxSplits('#', 1));
  const std::pair<std::string, std::string> action = absl::StrSplit(what, absl::MaxSplits('@', 1));
  fault.moment = moment.first;
  fault.action = action.first;
  SOMNUS_CHECK(moment.second.empty() || absl::SimpleAtoi(moment.second, &fault.nth));
  SOMNUS_CHECK(absl::SimpleAtoi(action.second, &fault.rank));
  SOMNUS_CHECK(times.empty() || absl::SimpleAtoi(times, &fault.times));
  return fault;
}

class Moments {
 public:
  static Moments& Instance() {
    static Moments* const instance = new Moments();
    return *instance;
  }

  void set_rank(int rank) { rank_ = rank; }

  absl::Status Reach(const std::string& moment) {
    const std::optional<MomentFault> fault = Due(moment);
    if (!fault.has_value()) return absl::OkStatus();
    if (fault->action == "kill") kill(getpid(), SIGKILL);
    while (fault->action == "wait" && Has(fault->line)) absl::SleepFor(kFaultPoll);
    if (fault->action == "damage") return absl::DataLossError("a fault was injected into this copy");
    if (fault->action != "fail") return absl::OkStatus();
    return absl::ResourceExhaustedError("a fault was injected into this call");
  }

 private:
  Moments() {
    const char* const path = getenv("SOMNUS_FAULTS");
    if (path != nullptr) path_ = path;
  }

  bool Has(const std::string& line) const {
    const std::vector<std::string> lines = Lines(path_);
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  }

  // The fault that strikes now; the strike is noted.
  std::optional<MomentFault> Due(const std::string& moment) {
    if (path_.empty()) return std::nullopt;
    absl::MutexLock lock(&mu_);
    const std::vector<std::string> lines = Lines(path_);
    std::erase_if(seen_, [&](const auto& seen) {
      return std::find(lines.begin(), lines.end(), seen.first) == lines.end();
    });
    for (const std::string& line : lines) {
      const std::optional<MomentFault> fault = Parse(line);
      if (!fault.has_value() || fault->moment != moment || fault->rank != rank_) continue;
      if (++seen_[line] == fault->nth && Strike(*fault)) return fault;
    }
    return std::nullopt;
  }

  bool Strike(const MomentFault& fault) const {
    const std::string path = path_ + ".struck";
    const std::vector<std::string> struck = Lines(path);
    if (std::count(struck.begin(), struck.end(), fault.line) >= fault.times) return false;
    std::ofstream(path, std::ios::app) << fault.line << std::endl;
    return true;
  }

  std::string path_;  // empty: there are no faults
  int rank_ = -1;
  absl::Mutex mu_;
  std::map<std::string, int> seen_ ABSL_GUARDED_BY(mu_);  // how often each line's moment has come
};

class CallWatch : public grpc::experimental::Interceptor {
 public:
  explicit CallWatch(std::string call) : call_(std::move(call)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE)) Reach(call_).IgnoreError();
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS))
      Reach(absl::StrCat(call_, ":done")).IgnoreError();
    methods->Proceed();
  }

 private:
  const std::string call_;
};

class CallWatches : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    if (info->type() != grpc::experimental::ServerRpcInfo::Type::UNARY) return nullptr;
    const std::vector<std::string> parts = absl::StrSplit(info->method(), '/');
    return new CallWatch(parts.back());
  }
};

// gRPC has no other way to reach a server that somebody else builds.
class CallWatchPlugin : public grpc::ServerBuilderPlugin {
 public:
  std::string name() override { return "call_watch"; }
  void UpdateServerBuilder(grpc::ServerBuilder* builder) override {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
    creators.push_back(std::make_unique<CallWatches>());
    builder->experimental().SetInterceptorCreators(std::move(creators));
  }
  void InitServer(grpc::ServerInitializer*) override {}
  void Finish(grpc::ServerInitializer*) override {}
  void ChangeArguments(const std::string&, void*) override {}
};

}  // namespace

void SetMomentRank(const std::vector<std::string>& arguments) {
  for (absl::string_view argument : arguments) {
    int rank = -1;
    if (absl::ConsumePrefix(&argument, "--rank=") && absl::SimpleAtoi(argument, &rank))
      Moments::Instance().set_rank(rank);
  }
}

absl::Status Reach(const std::string& moment) { return Moments::Instance().Reach(moment); }

void WatchCalls() {
  grpc::ServerBuilder::InternalAddPluginFactory(
      [] { return std::unique_ptr<grpc::ServerBuilderPlugin>(new CallWatchPlugin()); });
}

}  // namespace somnus
