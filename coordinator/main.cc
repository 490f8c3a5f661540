// The coordinator: serves one or several models with the workers that it starts or waits for. Exit codes: 0
// after SIGTERM or SIGINT, which end the workers, too, or SIGUSR1, which leaves them for the next
// coordinator; 1 when the coordinator could not start or an engine failed, 2 for wrong flags.

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/discovery.h"
#include "base/freed_memory.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/log_writer.h"
#include "base/monotonic.h"
#include "base/service_manager.h"
#include "base/threads.h"
#include "coordinator/flags/flags.h"
#include "coordinator/flags/serve_config.h"
#include "coordinator/liveness_log.h"
#include "coordinator/livez_probe.h"
#include "coordinator/server.h"
#include "coordinator/signals.h"
#include "coordinator/start_needs.h"
#include "proto/handshake.h"

namespace {

// A coordinator under the heaviest load takes a fraction of this time.
constexpr absl::Duration kProbeTimeout = absl::Seconds(5);
// An end takes the most time where workers have to be killed: up to 2 s for their replies, 5 s from SIGTERM
// to SIGKILL, and then kKillPatience. An end may have to wait for a recovery, too, which gives a killed
// worker as much time. The end of a server that has started comes after --shutdown-timeout.
constexpr absl::Duration kStopPatience = absl::Seconds(90);
constexpr absl::Duration kFlushTimeout = absl::Seconds(1);

int CannotServe(const absl::Status& status) {
  std::fprintf(stderr, "coordinator: %s\n", std::string(status.message()).c_str());
  return 1;
}

// Watches the loops that begin later. The engine's loop may wait for a worker that reads nothing until
// --hang-timeout ends the wait, so the limit is no shorter than two of these.
void WatchLoops(const somnus::Flags& flags) {
  if (flags.liveness_timeout <= absl::ZeroDuration()) return;
  somnus::Heartbeats::OfProcess().Watch(std::max(flags.liveness_timeout, 2 * flags.engine.hang_timeout));
}

// The last resort of a server that was told to stop: a read from a file system that does not answer cannot be
// interrupted. The object is of the thread that serves, AskedToStop is for any thread.
class StopGuard {
 public:
  ~StopGuard() {
    over_.Stop();
    if (thread_.joinable()) thread_.join();
  }

  // Ends the process where it still exists after that time. To be called once. Where the system has no thread
  // left, the server ends as it does without a guard.
  void AskedToStop(absl::Duration patience) {
    absl::StatusOr<std::thread> thread = somnus::StartThread([this, patience] {
      if (over_.WaitFor(patience)) return;
      somnus::LogError(
          "the server has not stopped within {}, and ends without more ado: does a file system hang?",
          absl::FormatDuration(patience));
      (void)somnus::LogWriter::OfProcess()->Flush(kFlushTimeout);
      _exit(1);
    });
    if (thread.ok()) {
      thread_ = *std::move(thread);
    } else {
      somnus::LogWarning("nothing ends the server if its end hangs: {}",
                         std::string(thread.status().message()));
    }
  }

 private:
  somnus::StopSignal over_;
  std::thread thread_;
};

// The requests to stop that signals bring, for a server that may not exist yet. Thread safe.
class StopRequests {
 public:
  // The `count`-th signal, from 1 on.
  void Add(int signal, int count) {
    absl::MutexLock lock(&mu_);
    // Once somebody has asked for the workers' end, too, no worker is left any more.
    const bool leave = signal == SIGUSR1 && (!last_.has_value() || last_->leave_workers);
    last_ = somnus::StopRequest{.impatient = count > 1, .leave_workers = leave};
    if (server_ != nullptr) server_->RequestStop(*last_);
  }

  // From now on this server gets the requests, the last one before too; null: nobody gets them.
  void SendTo(somnus::Server* server) {
    absl::MutexLock lock(&mu_);
    server_ = server;
    if (server_ != nullptr && last_.has_value()) server_->RequestStop(*last_);
  }

 private:
  absl::Mutex mu_;
  somnus::Server* server_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::optional<somnus::StopRequest> last_ ABSL_GUARDED_BY(mu_);
};

// Serves until a signal tells the server to stop; returns the exit code.
int Serve(const somnus::Flags& flags) {
  // Before there are other threads, too.
  const std::unique_ptr<somnus::ServiceManager> manager = somnus::ServiceManager::TakeFromEnvironment();
  StopGuard guard;
  StopRequests requests;
  std::atomic<bool> starting{true};
  // The object is constructed before any other thread exists, so that all threads inherit its signal mask.
  // The third signal ends the process at once.
  somnus::SignalWatcher signals([&](int signal, int count) {
    if (count >= 3) _exit(1);
    if (count == 1) {
      manager->Stopping();
      guard.AskedToStop(starting ? kStopPatience : flags.shutdown_timeout + kStopPatience);
    }
    requests.Add(signal, count);
  });
  WatchLoops(flags);
  const somnus::LivenessLog liveness_log(&somnus::Heartbeats::OfProcess());
  const std::unique_ptr<somnus::Server> server = somnus::Server::Create(flags);
  requests.SendTo(server.get());
  absl::Status status = server->Start();
  starting = false;
  if (status.ok()) {
    const std::string what =
        flags.models.empty() ? flags.model : absl::StrCat(flags.models.size(), " models");
    manager->Ready(absl::StrCat("serving ", what));
    const bool tls = !flags.admin_tls.certificate.empty();
    manager->Watch([host = flags.admin_host, port = server->admin_port(), tls] {
      return somnus::ProbeLivez(host, port, tls, kProbeTimeout);
    });
    status = server->Run();
  }
  requests.SendTo(nullptr);
  if (status.ok() || absl::IsCancelled(status)) return 0;
  return CannotServe(status);
}

}  // namespace

int main(int argc, char** argv) {
  somnus::ReturnLargeBlocks();
  // gRPC's own log repeats our errors, in several lines each.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  somnus::LogFailedHandshakes();
  somnus::Flags flags;
  const somnus::FlagTable table = somnus::CoordinatorFlags(&flags);
  std::vector<std::string> positional;
  if (const auto code = somnus::ParseCommandLine(table, argc, argv, &positional); code.has_value())
    return *code;
  absl::Status status = somnus::AddServeConfig({argv + 1, argv + argc}, &flags);
  if (status.ok()) status = somnus::FinishFlags(positional, somnus::ProcessEnvironment(), &flags);
  if (status.ok()) {
    if (const absl::Status limits = somnus::CheckStartLimits(somnus::NeedsOf(flags)); !limits.ok())
      return CannotServe(limits);
    status = somnus::InitLogging("coordinator", flags.log_level, flags.log_queue_bytes);
  }
  if (!status.ok()) return somnus::UsageError(table, status);
  if (!flags.discovered.empty()) somnus::LogInfo("{}", flags.discovered);

  return Serve(flags);
}
