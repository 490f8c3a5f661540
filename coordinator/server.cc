#include "coordinator/server.h"

#include <filesystem>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "checkpoint/checkpoint.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/launch.h"
#include "proto/log.h"
#include "proto/status_macros.h"

namespace somnus {
namespace {

EngineOptions MakeEngineOptions(const Flags& flags, const ModelConfig& config, const KvPlan& plan) {
  EngineOptions options;
  options.scheduler.max_num_seqs = flags.max_num_seqs;
  options.scheduler.max_num_batched_tokens = flags.max_num_batched_tokens;
  options.scheduler.max_model_len = plan.max_model_len;
  options.scheduler.policy =
      flags.scheduling_policy == "priority" ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  options.scheduler.blocks.num_blocks = plan.num_blocks;
  options.scheduler.blocks.block_size = flags.block_size;
  options.scheduler.blocks.enable_prefix_caching = flags.enable_prefix_caching;
  options.pipeline_depth = flags.overlap;
  options.max_num_waiting = flags.max_num_waiting;
  options.step_timeout = absl::Seconds(flags.step_timeout_s);
  options.vocab_size = config.vocab_size;
  return options;
}

absl::StatusOr<int32_t> ResolveMaxModelLen(const Flags& flags, const ModelConfig& config) {
  if (flags.max_model_len == 0) return config.max_position_embeddings;
  if (flags.max_model_len <= config.max_position_embeddings) return flags.max_model_len;
  return absl::InvalidArgumentError(absl::StrCat("--max-model-len: ", flags.max_model_len,
                                                 " is more than the model's ", config.max_position_embeddings,
                                                 " positions"));
}

class ServerImpl : public Server {
 public:
  explicit ServerImpl(const Flags& flags) : flags_(flags) {}
  ~ServerImpl() override { workers_.Stop(); }

  absl::Status Start() override {
    const absl::Time start = absl::Now();
    ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(flags_.model));
    const ModelConfig& config = checkpoint_->config();
    ASSIGN_OR_RETURN(const int32_t max_model_len, ResolveMaxModelLen(flags_, config));
    RETURN_IF_ERROR(workers_.Start(flags_));
    absl::StatusOr<KvPlan> plan = workers_.Load(flags_, config, max_model_len);
    {
      absl::MutexLock lock(&mu_);
      starting_ = false;
      if (stop_requested_) return absl::CancelledError("stopped");
    }
    RETURN_IF_ERROR(plan.status());
    engine_ =
        std::make_shared<EngineLoop>(MakeEngineOptions(flags_, config, *plan), workers_.executor(), nullptr);
    LogInfo("ready after {:.2f} s", absl::ToDoubleSeconds(absl::Now() - start));
    return absl::OkStatus();
  }

  absl::Status Run() override {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&stop_requested_));
    }
    const std::string error = engine_->Stats().error;
    absl::Duration grace = absl::Seconds(flags_.shutdown_timeout_s);
    LogInfo("stopping; open requests have {}", absl::FormatDuration(grace));
    engine_->DrainAndStop(grace);
    workers_.Stop();
    if (!error.empty()) return absl::UnavailableError(absl::StrCat("the engine had failed: ", error));
    return absl::OkStatus();
  }

  void RequestStop(bool impatient) override {
    absl::MutexLock lock(&mu_);
    stop_requested_ = true;
    // Once requests are served these are drained first, by Run.
    if (starting_ || impatient) workers_.Interrupt(absl::CancelledError("stopped"));
  }

 private:
  const Flags flags_;
  std::unique_ptr<Checkpoint> checkpoint_;
  WorkerGroup workers_;
  std::shared_ptr<EngineLoop> engine_;  // ends before the workers, whose executor it borrows
  absl::Mutex mu_;
  bool stop_requested_ ABSL_GUARDED_BY(mu_) = false;
  bool starting_ ABSL_GUARDED_BY(mu_) = true;
};

}  // namespace

std::unique_ptr<Server> Server::Create(const Flags& flags) { return std::make_unique<ServerImpl>(flags); }

}  // namespace somnus
