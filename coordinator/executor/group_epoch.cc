#include "coordinator/executor/group_epoch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/host_port.h"
#include "base/memory_tags.h"
#include "base/random_hex.h"
#include "base/running_clock.h"
#include "base/status_macros.h"
#include "coordinator/executor/transition_speeds.h"
#include "proto/status.h"

namespace somnus {
namespace {

using Stub = CollectiveCalls::Stub;

constexpr absl::Duration kConnectPoll = absl::Milliseconds(200);
constexpr size_t kGroupSecretBytes = 32;

// Workers with Unix sockets are on the coordinator's own host, by whatever name.
bool OnSeveralHosts(const std::vector<WorkerLink>& workers) {
  return std::any_of(workers.begin(), workers.end(), [&](const WorkerLink& worker) {
    return worker.endpoint.host != workers[0].endpoint.host &&
           (!absl::StartsWith(worker.endpoint.address, "unix:") ||
            !absl::StartsWith(workers[0].endpoint.address, "unix:"));
  });
}

// Adds up the ranks' progress of loading, and keeps their last events.
class LoadSum {
 public:
  LoadSum(size_t num_ranks, const std::function<void(int64_t, int64_t)>& progress)
      : progress_(progress), last_(num_ranks), bytes_(num_ranks, {0, 0}) {}

  void Add(size_t rank, const v1::LoadModelEvent& event) {
    absl::MutexLock lock(&mu_);
    if (event.done()) {
      last_[rank] = event;
      return;
    }
    bytes_[rank] = {event.bytes_loaded(), event.bytes_total()};
    std::pair<int64_t, int64_t> sum(0, 0);
    for (const auto& [done, total] : bytes_) sum = {sum.first + done, sum.second + total};
    progress_(sum.first, sum.second);
  }
  // To be called once no rank loads any longer.
  std::vector<v1::LoadModelEvent> Take() {
    absl::MutexLock lock(&mu_);
    return std::move(last_);
  }

 private:
  const std::function<void(int64_t, int64_t)>& progress_;
  absl::Mutex mu_;
  std::vector<v1::LoadModelEvent> last_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<int64_t, int64_t>> bytes_ ABSL_GUARDED_BY(mu_);
};

grpc::Status LoadRank(const WorkerLink& worker, size_t rank, const v1::LoadModelRequest& request,
                      grpc::ClientContext* context, LoadSum* sum) {
  v1::LoadModelRequest own = request;
  own.mutable_parallel()->set_rank(static_cast<int32_t>(rank));
  auto events = worker.stub->LoadModel(context, own);
  v1::LoadModelEvent event;
  bool done = false;
  while (events->Read(&event)) {
    sum->Add(rank, event);
    done = event.done();
  }
  grpc::Status status = events->Finish();
  if (status.ok() && !done)
    return grpc::Status(grpc::StatusCode::INTERNAL, "LoadModel ended without its last event");
  return status;
}

std::vector<absl::StatusOr<v1::WorkerSnapshot>> FenceAll(const CollectiveCalls& calls,
                                                         absl::Duration timeout) {
  v1::FenceRequest request;
  request.set_patience_ms(absl::ToInt64Milliseconds(timeout));
  std::vector<absl::StatusOr<v1::WorkerSnapshot>> results;
  for (absl::StatusOr<v1::FenceResponse>& response : calls.AskEach(timeout, &Stub::Fence, request)) {
    if (response.ok()) {
      results.push_back(std::move(*response->mutable_snapshot()));
    } else {
      results.push_back(response.status());
    }
  }
  return results;
}

size_t RanksOfStage(size_t num_ranks, const ExecutorOptions& options) {
  return num_ranks / static_cast<size_t>(options.num_stages);
}

// The rank that samples.
size_t FirstOfLastStage(size_t num_ranks, const ExecutorOptions& options) {
  return num_ranks - RanksOfStage(num_ranks, options);
}

// All ranks have checked the same version of the weights, or the check is an error.
absl::StatusOr<SelfCheckResult> SumUp(const std::vector<WorkerLink>& workers,
                                      const std::vector<v1::SelfCheckResponse>& responses,
                                      size_t sampling_rank) {
  SelfCheckResult result;
  result.weights_version = responses[0].weights_version();
  result.fingerprint = responses[sampling_rank].fingerprint();
  result.bitwise = true;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    const WorkerEndpoint& endpoint = workers[rank].endpoint;
    if (responses[rank].weights_version() != result.weights_version) {
      return absl::InternalError(absl::StrCat(workers[rank].name, " has checked version ",
                                              responses[rank].weights_version(), " of the weights, rank 0 ",
                                              result.weights_version));
    }
    result.bitwise &= endpoint.device_type == v1::DEVICE_TYPE_CPU;
    absl::StrAppend(&result.machines, v1::DeviceType_Name(endpoint.device_type), " of ", endpoint.host, "; ");
  }
  return result;
}

v1::WorkerAdapter MessageOf(const HeldAdapter& adapter) {
  v1::WorkerAdapter message;
  message.set_slot(adapter.slot);
  message.set_id(adapter.id);
  message.set_name(adapter.name);
  message.set_path(adapter.path);
  return message;
}

// `fingerprint`: of the files that were loaded, or that an earlier rank has read; empty: no rank has read
// yet.
absl::Status CheckFingerprint(const HeldAdapter& adapter, size_t rank,
                              const v1::SetAdaptersResponse& response, std::string* fingerprint) {
  const auto found = response.fingerprints().find(adapter.id);
  const std::string read = found == response.fingerprints().end() ? "" : found->second;
  if (fingerprint->empty()) *fingerprint = read;
  if (read == *fingerprint) return absl::OkStatus();
  const char* const why = adapter.fingerprint.empty() ? "differ from those that rank 0 has read"
                                                      : "have changed since the adapter was loaded";
  return absl::DataLossError(absl::StrCat("rank ", rank, ": adapter '", adapter.name, "' (", adapter.path,
                                          "): the files ", why, "; load it again with load_inplace"));
}

}  // namespace

size_t NumIn(const Ranks& ranks) { return static_cast<size_t>(std::count(ranks.begin(), ranks.end(), true)); }

std::vector<absl::StatusOr<v1::WorkerSnapshot>> FenceWorkers(const std::vector<WorkerLink>& workers,
                                                             int64_t group_epoch, absl::Duration timeout,
                                                             FailureLatch* latch) {
  if (workers.empty()) return {};
  const CollectiveCalls calls(group_epoch, &workers, latch, /*blame_grace=*/absl::ZeroDuration(), RunningNow,
                              /*way_out=*/"");
  return FenceAll(calls, timeout);
}

GroupEpoch::GroupEpoch(int64_t number, std::vector<WorkerLink> workers, const ExecutorOptions& options)
    : number_(number),
      options_(WithSpeeds(options)),
      workers_(std::move(workers)),
      calls_(number, &workers_, &latch_, options.blame_grace, options.now, options.way_to_longer_deadlines),
      sleep_(&calls_, &latch_, &workers_, options_),
      weights_(&calls_, &latch_, &workers_, options),
      streams_(&workers_, &latch_, options.blame_grace, FirstOfLastStage(workers_.size(), options)),
      monitor_(&workers_, &streams_, &latch_, options.blame_grace, options.now) {}

GroupEpoch::~GroupEpoch() {
  latch_.SetCallback(nullptr);
  latch_.Fail(absl::CancelledError("the epoch has ended"));  // cancels the streams
}

absl::Status GroupEpoch::AwaitConnections() {
  const MonotonicTime deadline = options_.now() + options_.connect_timeout;
  for (const WorkerLink& worker : workers_) RETURN_IF_ERROR(AwaitConnection(worker, deadline));
  monitor_.Start([this] { weights_.Watch(); });
  return absl::OkStatus();
}

absl::Status GroupEpoch::AwaitConnection(const WorkerLink& worker, MonotonicTime deadline) {
  // The waits are short, so that the loss of a process ends them.
  while (!worker.channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kConnectPoll))) {
    RETURN_IF_ERROR(latch_.status());
    if (options_.now() < deadline) continue;
    return absl::UnavailableError(absl::StrCat(worker.name, " at ", worker.endpoint.address,
                                               " could not be reached within ",
                                               absl::FormatDuration(options_.connect_timeout)));
  }
  return latch_.status();
}

absl::StatusOr<std::vector<v1::WorkerSnapshot>> GroupEpoch::Fence() {
  std::vector<v1::WorkerSnapshot> snapshots;
  std::vector<absl::Status> statuses;
  for (auto& result : FenceAll(calls_, options_.fence_timeout)) {
    statuses.push_back(result.status());
    snapshots.push_back(result.ok() ? *std::move(result) : v1::WorkerSnapshot());
  }
  RETURN_IF_ERROR(calls_.FirstError(statuses));
  return snapshots;
}

v1::ParallelConfig GroupEpoch::Parallel() const {
  v1::ParallelConfig parallel;
  parallel.set_world_size(static_cast<int32_t>(workers_.size()));
  if (options_.num_stages > 1) parallel.set_num_stages(options_.num_stages);
  for (const WorkerLink& worker : workers_) {
    parallel.add_rank_hosts(worker.endpoint.host);
    parallel.add_rank_cpus(worker.endpoint.cpus);
  }
  return parallel;
}

absl::StatusOr<std::vector<v1::LoadModelEvent>> GroupEpoch::LoadModel(
    const Ranks& ranks, const v1::LoadModelRequest& request,
    const std::function<void(int64_t, int64_t)>& progress) {
  v1::LoadModelRequest group = request;
  const google::protobuf::RepeatedField<int32_t> stage_layers = request.parallel().stage_layers();
  *group.mutable_parallel() = Parallel();
  *group.mutable_parallel()->mutable_stage_layers() = stage_layers;
  calls_.Stamp(&group);
  LoadSum sum(workers_.size(), progress);
  const MonotonicTime begin = options_.now();
  RETURN_IF_ERROR(calls_.FirstError(calls_.RunUntilError(
      "LoadModel", options_.load_timeout,
      [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
        return ranks[rank] ? LoadRank(worker, rank, group, context, &sum) : grpc::Status::OK;
      })));
  std::vector<v1::LoadModelEvent> loaded = sum.Take();
  const double seconds = absl::ToDoubleSeconds(options_.now() - begin);
  std::vector<TransitionSpeeds::Moved> read;
  for (const v1::LoadModelEvent& event : loaded) read.push_back({event.bytes_loaded(), seconds});
  options_.speeds->Note(MovementKind::kRead, read);
  return loaded;
}

absl::StatusOr<std::vector<v1::ParallelConfig>> GroupEpoch::NewGroup(const std::string& group_name) {
  v1::ParallelConfig parallel = Parallel();
  parallel.set_group_name(group_name);
  const size_t stage_ranks = RanksOfStage(workers_.size(), options_);
  const bool on_gpus = workers_[0].endpoint.device_type == v1::DEVICE_TYPE_CUDA;
  // GPUs of a stage have NCCL; between stages they meet at a port first.
  const bool needs_ports = !on_gpus || options_.num_stages > 1;
  if (workers_.size() > 1 && needs_ports && OnSeveralHosts(workers_)) RETURN_IF_ERROR(OpenPorts(&parallel));
  Ranks first_of_stages(workers_.size(), false), senders(workers_.size(), false);
  for (size_t rank = 0; rank < workers_.size() && on_gpus; ++rank) {
    first_of_stages[rank] = stage_ranks > 1 && rank % stage_ranks == 0;
    senders[rank] = rank + stage_ranks < workers_.size();
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> stage_ids, MakeNcclIds(first_of_stages));
  ASSIGN_OR_RETURN(const std::vector<std::string> link_ids, MakeNcclIds(senders));
  for (const std::string& id : link_ids) parallel.add_nccl_link_ids(id);
  std::vector<v1::ParallelConfig> of_ranks(workers_.size(), parallel);
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    of_ranks[rank].set_rank(static_cast<int32_t>(rank));
    if (!stage_ids.empty()) of_ranks[rank].set_nccl_unique_id(stage_ids[rank / stage_ranks]);
  }
  return of_ranks;
}

absl::StatusOr<std::vector<std::string>> GroupEpoch::MakeNcclIds(const Ranks& makers) {
  std::vector<std::string> ids;
  if (std::find(makers.begin(), makers.end(), true) == makers.end()) return ids;
  ASSIGN_OR_RETURN(
      const std::vector<v1::NewGroupResponse> responses,
      calls_.Collect(makers, options_.lifecycle_timeout, &Stub::NewGroup, v1::NewGroupRequest()));
  for (size_t rank = 0; rank < makers.size(); ++rank) {
    if (makers[rank]) ids.push_back(responses[rank].nccl_unique_id());
  }
  return ids;
}

// Ranks reach a rank at the host where the coordinator reaches that rank, at a port of its own.
absl::Status GroupEpoch::OpenPorts(v1::ParallelConfig* parallel) {
  for (const WorkerLink& worker : workers_) {
    const bool unix = absl::StartsWith(worker.endpoint.address, "unix:");
    if (!unix && SplitHostPort(worker.endpoint.address).has_value()) continue;
    return absl::FailedPreconditionError(absl::StrCat(worker.name, " listens at ", worker.endpoint.address,
                                                      ", where ranks on other hosts cannot reach it"));
  }
  const auto host_of = [this](size_t rank) { return SplitHostPort(workers_[rank].endpoint.address)->host; };
  ASSIGN_OR_RETURN(const std::vector<v1::NewGroupResponse> responses,
                   calls_.Collect(calls_.all(), options_.lifecycle_timeout, &Stub::NewGroup,
                                  v1::NewGroupRequest(), [&](size_t rank, v1::NewGroupRequest* request) {
                                    request->set_listen_host(host_of(rank));
                                    request->set_opens_link(options_.num_stages > 1);
                                  }));
  for (size_t rank = 0; rank < workers_.size(); ++rank)
    parallel->add_rank_addresses(JoinHostPort(host_of(rank), responses[rank].port()));
  for (size_t rank = 0; rank < workers_.size() && options_.num_stages > 1; ++rank)
    parallel->add_link_addresses(JoinHostPort(host_of(rank), responses[rank].link_port()));
  parallel->set_group_secret(RandomHex(kGroupSecretBytes));
  return absl::OkStatus();
}

absl::Status GroupEpoch::JoinGroup(const std::string& group_name, bool may_differ) {
  ASSIGN_OR_RETURN(const std::vector<v1::ParallelConfig> of_ranks, NewGroup(group_name));
  ASSIGN_OR_RETURN(const std::vector<v1::JoinGroupResponse> responses,
                   calls_.Collect(calls_.all(), options_.lifecycle_timeout, &Stub::JoinGroup,
                                  v1::JoinGroupRequest(), [&](size_t rank, v1::JoinGroupRequest* own) {
                                    *own->mutable_parallel() = of_ranks[rank];
                                  }));
  for (size_t rank = 1; rank < responses.size() && !may_differ; ++rank) {
    if (responses[rank].weights_version() == responses[0].weights_version()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(workers_[rank].name, " has version ", responses[rank].weights_version(),
                     " of the weights, rank 0 has ", responses[0].weights_version()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::ProfileResponse>> GroupEpoch::Profile() {
  return calls_.Collect(calls_.all(), options_.load_timeout, &Stub::Profile, v1::ProfileRequest());
}

absl::Status GroupEpoch::AllocateKvCache(const Ranks& ranks, const v1::KvCacheConfig& config,
                                         bool defer_graphs) {
  v1::AllocateKvCacheRequest request;
  *request.mutable_kv_cache() = config;
  request.set_defer_graphs(defer_graphs);
  return calls_.Collect(ranks, options_.lifecycle_timeout, &Stub::AllocateKvCache, std::move(request))
      .status();
}

absl::StatusOr<std::vector<v1::ResizeKvCacheResponse>> GroupEpoch::ResizeRanks(const Ranks& ranks,
                                                                               int32_t num_blocks) {
  sleep_.ForgetHeldBytes();
  v1::ResizeKvCacheRequest request;
  request.set_num_blocks(num_blocks);
  return calls_.CollectOperation(ranks, options_.lifecycle_timeout, &Stub::ResizeKvCache, request);
}

absl::StatusOr<TransitionReport> GroupEpoch::ResizeKvCache(int32_t num_blocks, int32_t num_before) {
  const auto responses = ResizeRanks(calls_.all(), num_blocks);
  if (!responses.ok()) {
    if (!latch_.status().ok()) return responses.status();
    const absl::Status undone = ResizeRanks(calls_.all(), num_before).status();
    if (!undone.ok()) {
      latch_.Fail(
          absl::UnavailableError(absl::StrCat("the KV cache may have different sizes on the ranks (",
                                              responses.status().message(), "): ", undone.message())));
    }
    return responses.status();
  }
  TransitionReport report;
  for (size_t rank = 0; rank < responses->size(); ++rank) {
    report.ranks.emplace_back().rank = static_cast<int>(rank);
    report.ranks.back().tags[kKvCacheTag].resident_bytes = (*responses)[rank].kv_cache_bytes();
  }
  return report;
}

absl::StatusOr<TransitionReport> GroupEpoch::ReadAdapters(const std::vector<HeldAdapter>& adapters,
                                                          FailureLatch* cancelled) {
  v1::ReadAdaptersRequest request;
  for (const HeldAdapter& adapter : adapters) *request.add_adapters() = MessageOf(adapter);
  calls_.Stamp(&request);
  const std::vector<absl::Status> read = calls_.RunUntilError(
      "ReadAdapters", options_.load_timeout,
      [&](const WorkerLink& worker, size_t /*rank*/, grpc::ClientContext* context) {
        if (!cancelled->Register(context)) return grpc::Status::CANCELLED;
        v1::ReadAdaptersResponse response;
        const grpc::Status status = worker.stub->ReadAdapters(context, request, &response);
        cancelled->Unregister(context);
        return status;
      });
  absl::Status error = cancelled->status();
  if (error.ok()) error = calls_.FirstError(read);
  if (error.ok()) return TransitionReport();
  // Other ranks may have read their files, and no change of the adapters may follow. A rank that does not
  // answer keeps the adapters until its next call.
  calls_.AskEach(options_.lifecycle_timeout, &Stub::ReadAdapters, v1::ReadAdaptersRequest());
  return error;
}

absl::StatusOr<TransitionReport> GroupEpoch::SetAdaptersOnAll(const std::vector<HeldAdapter>& adapters) {
  v1::SetAdaptersRequest request;
  for (const HeldAdapter& adapter : adapters) *request.add_adapters() = MessageOf(adapter);
  ASSIGN_OR_RETURN(
      const std::vector<v1::SetAdaptersResponse> responses,
      calls_.CollectOperation(calls_.all(), options_.load_timeout, &Stub::SetAdapters, std::move(request)));
  TransitionReport report;
  for (const HeldAdapter& adapter : adapters) {
    std::string& fingerprint = report.adapters[adapter.id];
    fingerprint = adapter.fingerprint;
    for (size_t rank = 0; rank < responses.size(); ++rank)
      RETURN_IF_ERROR(CheckFingerprint(adapter, rank, responses[rank], &fingerprint));
  }
  return report;
}

absl::StatusOr<TransitionReport> GroupEpoch::SetAdapters(const std::vector<HeldAdapter>& adapters,
                                                         const std::vector<HeldAdapter>& kept) {
  absl::StatusOr<TransitionReport> set = SetAdaptersOnAll(adapters);
  if (set.ok() || !latch_.status().ok()) return set;
  // Every rank holds `kept` in any case, so that no rank reads files. An adapter that was to go is not read
  // again, since the files may have changed.
  if (const absl::Status undone = SetAdaptersOnAll(kept).status(); !undone.ok()) {
    latch_.Fail(absl::UnavailableError(absl::StrCat("the ranks may hold different adapters (",
                                                    set.status().message(), "): ", undone.message())));
  }
  return set;
}

absl::Status GroupEpoch::SetKvCacheSize(const std::vector<v1::WorkerSnapshot>& snapshots,
                                        int32_t num_blocks) {
  Ranks others;
  for (const v1::WorkerSnapshot& snapshot : snapshots) {
    const int32_t mapped = snapshot.num_mapped_blocks();
    others.push_back((mapped > 0 ? mapped : snapshot.num_blocks()) != num_blocks);
  }
  return NumIn(others) == 0 ? absl::OkStatus() : ResizeRanks(others, num_blocks).status();
}

absl::Status GroupEpoch::Prefetch() const {
  v1::PrefetchRequest request;
  request.set_cpu_share(options_.prefetch_cpu_share);
  std::vector<absl::Status> statuses;
  for (const auto& response : calls_.AskEach(options_.lifecycle_timeout, &Stub::Prefetch, request))
    statuses.push_back(response.status());
  return calls_.FirstError(statuses);
}

absl::Status GroupEpoch::ExecuteAsync(v1::StepRequest* step) {
  RETURN_IF_ERROR(latch_.status());
  step->set_group_epoch(number_);
  RETURN_IF_ERROR(streams_.Send(*step));
  sent_.push_back(step->step_id());
  return absl::OkStatus();
}

absl::Status GroupEpoch::SendMasks(v1::StepMasks masks) {
  RETURN_IF_ERROR(latch_.status());
  return streams_.SendMasks(number_, std::move(masks));
}

absl::StatusOr<v1::StepReply> GroupEpoch::Wait(absl::Duration timeout) {
  RETURN_IF_ERROR(latch_.status());
  if (sent_.empty()) return absl::FailedPreconditionError("no step is under way");
  const int64_t step_id = sent_.front();
  sent_.pop_front();
  monitor_.AwaitStep(step_id, timeout);
  absl::StatusOr<v1::StepReply> reply = streams_.Receive(step_id);
  monitor_.StepArrived();
  return reply;
}

// A failed self-check ends the epoch: the check is a collective, which leaves ranks that wait for other
// ranks.
absl::StatusOr<SelfCheckResult> GroupEpoch::SelfCheck() {
  const auto responses =
      calls_.Collect(calls_.all(), options_.transition_timeout, &Stub::SelfCheck, v1::SelfCheckRequest());
  absl::StatusOr<SelfCheckResult> result =
      responses.ok() ? SumUp(workers_, *responses, FirstOfLastStage(workers_.size(), options_))
                     : responses.status();
  if (result.ok()) return result;
  latch_.Fail(absl::UnavailableError(absl::StrCat("the self-check has failed: ", result.status().message())));
  return result;
}

std::vector<absl::StatusOr<v1::WorkerStatusResponse>> GroupEpoch::RankStatuses(absl::Duration timeout) {
  return calls_.AskEach(timeout, &Stub::GetStatus, v1::WorkerStatusRequest());
}

std::vector<absl::StatusOr<v1::ChecksumWeightsResponse>> GroupEpoch::ChecksumWeights() {
  return calls_.AskEach(options_.checksum_timeout, &Stub::ChecksumWeights, v1::ChecksumWeightsRequest());
}

absl::StatusOr<GroupBytes> GroupEpoch::Bytes() {
  if (std::optional<GroupBytes> committed = sleep_.TakeCommittedBytes(); committed.has_value())
    return *std::move(committed);
  ASSIGN_OR_RETURN(const std::vector<v1::WorkerStatusResponse> responses,
                   calls_.CollectOperation(calls_.all(), options_.lifecycle_timeout, &Stub::GetStatus,
                                           v1::WorkerStatusRequest()));
  GroupBytes sum;
  int64_t most = 0;
  for (const v1::WorkerStatusResponse& response : responses) {
    int64_t resident = 0;
    for (const auto& [tag, bytes] : response.bytes_by_tag()) {
      resident += bytes;
      sum.resident[tag] += bytes;
    }
    most = std::max(most, resident);
    for (const auto& [tag, bytes] : response.host_bytes_by_tag()) sum.host[tag] += bytes;
    for (const auto& [tag, bytes] : response.sleeping_bytes_by_tag()) sum.sleeping[tag] += bytes;
  }
  sleep_.NoteHeldBytes(most);
  return sum;
}

void GroupEpoch::Shutdown(absl::Duration timeout) {
  monitor_.Stop();
  streams_.Close();
  calls_.AskEach(timeout, &Stub::Shutdown, v1::WorkerShutdownRequest());
}

}  // namespace somnus
