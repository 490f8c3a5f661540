#include "proto/handshake.h"

#include <grpc/support/log.h>
#include <string.h>

#include <cstdint>
#include <cstdlib>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/monotonic.h"

namespace somnus {
namespace {

constexpr char kMeaning[] =
    "the other side has another cluster secret (--cluster-secret-file or SOMNUS_CLUSTER_SECRET), or "
    "certificates of another authority";
constexpr absl::Duration kLogInterval = absl::Minutes(1);

// Counts failures, of which a stranger can make as many as he likes.
class HandshakeLog {
 public:
  static HandshakeLog& OfProcess() {
    static auto& log = *new HandshakeLog;
    return log;
  }

  void Note() {
    absl::MutexLock lock(&mu_);
    ++num_failed_;
    const MonotonicTime now = MonotonicNow();
    if (now < next_) return;
    next_ = now + kLogInterval;
    LogWarning("a TLS handshake on a gRPC port has failed ({} so far): {}, or it speaks no TLS", num_failed_,
               kMeaning);
  }

  int64_t num_failed() {
    absl::MutexLock lock(&mu_);
    return num_failed_;
  }

 private:
  absl::Mutex mu_;
  int64_t num_failed_ ABSL_GUARDED_BY(mu_) = 0;
  MonotonicTime next_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
};

void OnGrpcLog(gpr_log_func_args* args) {
  if (strstr(args->message, "Handshake failed") != nullptr) HandshakeLog::OfProcess().Note();
}

}  // namespace

absl::Status ExplainHandshake(const absl::Status& status) {
  if (!absl::IsUnavailable(status) || !absl::StrContains(status.message(), " handshake failed"))
    return status;
  return absl::UnavailableError(absl::StrCat("the TLS handshake has failed: ", kMeaning));
}

void LogFailedHandshakes() {
  if (const char* verbosity = getenv("GRPC_VERBOSITY");
      verbosity != nullptr && absl::string_view(verbosity) != "NONE")
    return;
  gpr_set_log_function(OnGrpcLog);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
}

int64_t NumFailedHandshakes() { return HandshakeLog::OfProcess().num_failed(); }

}  // namespace somnus
