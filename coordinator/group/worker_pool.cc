#include "coordinator/group/worker_pool.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/build_id.h"
#include "base/counted.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/random_hex.h"
#include "base/running_clock.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "coordinator/group/device_name.h"
#include "coordinator/group/worker_command.h"

namespace somnus {
namespace {

constexpr absl::Duration kAdoptionPatience = absl::Seconds(1);  // for waiting workers to find a coordinator
constexpr absl::Duration kEndGrace = absl::Seconds(2);      // for a worker that was left and does not come
constexpr absl::Duration kExitTimeout = absl::Seconds(30);  // from SIGKILL until the process has ended

// Whether the worker's successor would end alike (WorkerProcesses::ExitCallback).
bool EndsAlike(const absl::Status& end) {
  return absl::IsFailedPrecondition(end) || absl::IsInvalidArgument(end);
}

// A process that was killed has left its socket beside the coordinator's (worker/listen_address.h).
void RemoveSocket(const std::string& coordinator, pid_t pid) {
  const std::filesystem::path own(std::string(absl::StripPrefix(coordinator, "unix:")));
  std::error_code ignored;
  std::filesystem::remove(own.parent_path() / absl::StrCat("worker-", pid, ".sock"), ignored);
}

}  // namespace

WorkerPool::WorkerPool(const Flags& flags, Callbacks callbacks)
    : flags_(flags), callbacks_(std::move(callbacks)), places_(flags.world_size) {}

absl::StatusOr<std::string> WorkerPool::FindBinary() const {
  std::error_code error;
  std::filesystem::path path = flags_.worker_binary;
  if (path.empty()) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
    path = self.parent_path().parent_path() / "worker" / "worker";
  }
  if (access(path.c_str(), X_OK) == 0) return path.string();
  return absl::NotFoundError(absl::StrCat("--worker-binary: ", path.string(), " cannot be executed"));
}

absl::Status WorkerPool::Start(AdoptionTerms terms, const v1::GroupFile& group) {
  terms_ = std::move(terms);
  ClusterTrustOptions trust = flags_.trust;
  ClusterServerOptions options = {.now = RunningNow, .log_name = ReplicaPrefix(flags_)};
  std::string binary;
  if (flags_.local_workers) {
    ASSIGN_OR_RETURN(binary, FindBinary());
    // A program that cannot be read has no build that a worker could be of.
    terms_.build_id = BuildIdOf(binary).value_or("unknown");
    for (int rank = 0; rank < flags_.world_size; ++rank) {
      terms_.device_indices.push_back(DeviceIndex(flags_, rank));
    }
    if (trust.secret.empty()) trust.secret = RandomHex(kMinSecretBytes);
  } else {
    options.address = absl::StrCat(flags_.cluster_host, ":", flags_.cluster_port);
  }
  if (!flags_.run_dir.empty()) {
    ASSIGN_OR_RETURN(run_state_, RunState::Open(flags_.run_dir, group, ReplicaPrefix(flags_)));
    if (flags_.trust.secret.empty()) {
      ASSIGN_OR_RETURN(trust.secret, run_state_->KeepSecret(trust.secret));
    }
    options.address = run_state_->socket_address();
    left_workers_.Expect(run_state_->left());
  }
  ASSIGN_OR_RETURN(trust_, ClusterTrust::Create(trust));
  options.trust = trust_;
  options.membership.world_size = flags_.world_size;
  options.membership.version = kVersion;
  options.membership.device = flags_.device;
  options.membership.hang_timeout = flags_.engine.hang_timeout;
  options.membership.confirm_members = !flags_.local_workers;
  options.membership.stall_threshold = flags_.engine.step_stall;
  options.membership.adopt = [this](const v1::RegisterRequest& worker) { return Decide(worker); };
  ASSIGN_OR_RETURN(std::unique_ptr<ClusterServer> cluster, ClusterServer::Start(options));
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(interruption_);
    cluster_ = std::move(cluster);
  }
  cluster_->OnSilence([this](const SilentMember& silent) { OnSilence(silent); });
  cluster_->OnStall(callbacks_.on_stall);
  if (flags_.local_workers) return StartProcesses(binary, trust.secret);
  LogInfo("{}waiting for {}: worker --coordinator={}", ReplicaPrefix(flags_),
          Counted(flags_.world_size, "worker"), cluster_->address());
  return absl::OkStatus();
}

absl::Status WorkerPool::StartProcesses(const std::string& binary, const std::string& secret) {
  ASSIGN_OR_RETURN(const ProcessesByRank adopted, AwaitLeft());
  std::vector<std::vector<std::string>> commands;
  for (int rank = 0; rank < flags_.world_size; ++rank) {
    commands.push_back(WorkerCommand(flags_, binary, cluster_->address(), rank));
  }
  ASSIGN_OR_RETURN(
      std::unique_ptr<WorkerProcesses> processes,
      WorkerProcesses::Spawn(
          commands, {absl::StrCat(kClusterSecretVariable, "=", secret)},
          [this](int rank, pid_t pid, const absl::Status& status) { OnExit(rank, pid, status); }, adopted));
  {
    absl::MutexLock lock(&mu_);
    processes_ = std::move(processes);
  }
  Record(0);
  return absl::OkStatus();
}

absl::StatusOr<ProcessesByRank> WorkerPool::AwaitLeft() {
  if (left_workers_.num_left() == 0) return ProcessesByRank();
  LeftWorkers::Outcome left = left_workers_.Await(kAdoptionPatience);
  LogInfo("{}{} of {} adopted, {} that were left ended", ReplicaPrefix(flags_), left.adopted.size(),
          Counted(flags_.world_size, "worker"), left.others.size());
  RETURN_IF_ERROR(EndProcesses(left.others, kEndGrace));
  return std::move(left.adopted);
}

// A local worker has the rank of its process.
Adoption WorkerPool::Decide(const v1::RegisterRequest& worker) {
  if (run_state_ == nullptr) return DecideAdoption(worker, terms_);
  const auto with_rank = [&](int rank) { return DecideAdoption(worker, rank, terms_); };
  std::optional<Adoption> left = left_workers_.Decide(worker.pid(), with_rank);
  if (left.has_value()) return *std::move(left);
  absl::MutexLock lock(&mu_);
  for (int rank = 0; processes_ != nullptr && rank < flags_.world_size; ++rank) {
    if (processes_->pid(rank) == worker.pid()) return with_rank(rank);
  }
  return {v1::REGISTER_ACTION_LEAVE, "this coordinator knows no such process"};
}

absl::Status WorkerPool::CheckHeld(size_t rank, const v1::WorkerSnapshot& now) const {
  v1::RegisterRequest member;
  {
    absl::MutexLock lock(&mu_);
    member = places_[rank].member;
  }
  if (!member.has_snapshot() || now.weights_version() == 0) return absl::OkStatus();
  *member.mutable_snapshot() = now;
  const Adoption adoption = DecideAdoption(member, static_cast<int32_t>(rank), terms_);
  if (adoption.action == v1::REGISTER_ACTION_ADOPT) return absl::OkStatus();
  return absl::UnavailableError(adoption.reason);
}

bool WorkerPool::adopted() const {
  absl::MutexLock lock(&mu_);
  return static_cast<size_t>(left_workers_.num_adopted()) == places_.size();
}

int64_t WorkerPool::last_epoch() const {
  int64_t last = run_state_ == nullptr ? 0 : run_state_->left_epoch();
  absl::MutexLock lock(&mu_);
  for (const Place& place : places_) last = std::max(last, place.member.snapshot().group_epoch());
  return last;
}

// A failed write costs the next coordinator these workers, and this coordinator nothing.
void WorkerPool::Record(int64_t group_epoch) {
  if (run_state_ == nullptr) return;
  ProcessesByRank running;
  for (int rank = 0; rank < flags_.world_size; ++rank) {
    if (absl::StatusOr<ProcessId> process = FindProcess(processes_->pid(rank)); process.ok())
      running[rank] = *process;
  }
  if (const absl::Status status = run_state_->Record(group_epoch, running); !status.ok())
    LogWarning("{}--run-dir: {}", ReplicaPrefix(flags_), std::string(status.message()));
}

void WorkerPool::OnExit(int rank, pid_t pid, const absl::Status& status) {
  NoteLoss(rank, status,
           [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return places_[rank].replaced_pid != pid; });
}

// The place may not know the worker yet, but the membership does.
void WorkerPool::OnSilence(const SilentMember& silent) {
  NoteLoss(silent.rank, silent.status, [&] {
    const std::optional<MemberStatus> member = cluster_->Members()[silent.rank];
    return member.has_value() && member->worker.worker_id() == silent.worker.worker_id();
  });
}

void WorkerPool::NoteLoss(size_t rank, absl::Status status, const std::function<bool()>& is_current) {
  {
    absl::MutexLock lock(&mu_);
    if (stopped_ || !places_[rank].loss.ok() || !is_current()) return;
    const bool had_come = !places_[rank].member.worker_id().empty();
    if (serving_ && (had_come || !absl::IsFailedPrecondition(status)))
      status = absl::UnavailableError(status.message());
    places_[rank].loss = status;
  }
  cluster_->Recheck();
  callbacks_.on_loss(status);
}

void WorkerPool::Discard(size_t rank, const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  if (places_[rank].loss.ok()) places_[rank].loss = reason;
}

void WorkerPool::NoteServing() {
  absl::MutexLock lock(&mu_);
  serving_ = true;
}

void WorkerPool::DiscardAbsent(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    Place& place = places_[rank];
    const bool came = !place.member.worker_id().empty() || cluster_->IsTaken(static_cast<int32_t>(rank));
    if (place.loss.ok() && !came) place.loss = reason;
  }
}

absl::Status WorkerPool::EndProcess(int rank) {
  const pid_t pid = processes_->pid(rank);
  processes_->Kill(rank, pid);
  {
    const Heartbeat::Wait wait(kExitTimeout);
    RETURN_IF_ERROR(processes_->AwaitExit(rank, pid, kExitTimeout));
  }
  RemoveSocket(cluster_->address(), pid);
  return absl::OkStatus();
}

absl::Status WorkerPool::EndDiscarded() {
  if (processes_ == nullptr) return absl::OkStatus();
  // All at first, so that they end at the same time.
  for (int rank = 0; rank < flags_.world_size; ++rank) processes_->Kill(rank, processes_->pid(rank));
  for (int rank = 0; rank < flags_.world_size; ++rank) RETURN_IF_ERROR(EndProcess(rank));
  return absl::OkStatus();
}

absl::Status WorkerPool::ReplaceLost(bool starts_refused, int max_starts) {
  for (int rank = 0; rank < flags_.world_size; ++rank) {
    {
      absl::MutexLock lock(&mu_);
      const Place& place = places_[rank];
      if (place.loss.ok()) continue;
      const bool never_came = place.member.worker_id().empty();
      const bool ends_alike = EndsAlike(place.loss) && !starts_refused;
      const bool was_last = processes_ != nullptr && !serving_ && place.num_starts >= max_starts;
      if (never_came ? ends_alike || was_last : ends_alike && !serving_) return place.loss;
    }
    if (processes_ != nullptr) RETURN_IF_ERROR(EndProcess(rank));
    absl::MutexLock lock(&mu_);
    cluster_->Reopen(rank);
    const bool came = !places_[rank].member.worker_id().empty();
    places_[rank] = Place{.num_starts = came ? 1 : places_[rank].num_starts + 1};
    if (processes_ == nullptr) {
      LogInfo("{}rank {} waits for a new worker", ReplicaPrefix(flags_), rank);
      continue;
    }
    places_[rank].replaced_pid = processes_->pid(rank);
    places_[rank].loss = processes_->Respawn(rank);
    RETURN_IF_ERROR(places_[rank].loss);
  }
  return absl::OkStatus();
}

std::vector<std::pair<size_t, WorkerLink>> WorkerPool::Survivors() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::pair<size_t, WorkerLink>> survivors;
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    const Place& place = places_[rank];
    if (place.loss.ok() && !place.member.worker_id().empty()) survivors.emplace_back(rank, place.link);
  }
  return survivors;
}

absl::StatusOr<std::vector<WorkerLink>> WorkerPool::Await(absl::Duration timeout) {
  const Heartbeat::Wait wait(timeout);
  ASSIGN_OR_RETURN(std::vector<v1::RegisterRequest> members,
                   cluster_->WaitForGroup(timeout, [this] { return Loss(); }));
  RETURN_IF_ERROR(SettleDevices(&members));
  absl::MutexLock lock(&mu_);
  std::vector<WorkerLink> links;
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    Place& place = places_[rank];
    const v1::RegisterRequest& member = members[rank];
    RETURN_IF_ERROR(place.loss);
    if (place.member.worker_id() != member.worker_id()) {
      place.link = MakeWorkerLink(
          rank, {member.address(), member.host(), member.pid(), member.device_type(), member.cpus()}, trust_);
      place.member = member;
    }
    links.push_back(place.link);
  }
  return links;
}

// The ranks run on the device that --device names, or else on the kind of device that every rank has found.
absl::Status WorkerPool::SettleDevices(std::vector<v1::RegisterRequest>* members) const {
  for (v1::RegisterRequest& member : *members) {
    if (flags_.device != v1::DEVICE_TYPE_UNSPECIFIED) member.set_device_type(flags_.device);
  }
  const v1::RegisterRequest& first = members->front();
  for (const v1::RegisterRequest& member : *members) {
    if (member.device_type() == first.device_type()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--device: the worker on ", member.host(), " (pid ", member.pid(), ") found ",
                     DeviceName(member.device_type()), ", the one on ", first.host(), " (pid ", first.pid(),
                     ") ", DeviceName(first.device_type()), "; say which"));
  }
  return absl::OkStatus();
}

absl::Status WorkerPool::Loss() const {
  absl::MutexLock lock(&mu_);
  for (const Place& place : places_) RETURN_IF_ERROR(place.loss);
  return absl::OkStatus();
}

void WorkerPool::Interrupt(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  interruption_ = reason;
  if (cluster_ != nullptr) cluster_->Interrupt(reason);
}

std::vector<v1::RegisterRequest> WorkerPool::Members() const {
  absl::MutexLock lock(&mu_);
  std::vector<v1::RegisterRequest> members;
  for (const Place& place : places_) members.push_back(place.member);
  return members;
}

void WorkerPool::Stop() {
  EndCallbacks();
  if (processes_ != nullptr) {
    processes_->Terminate(absl::Seconds(5));
    if (run_state_ != nullptr) run_state_->Clear();
  }
  CloseListener();
}

// Until the listener is closed it knows the workers: no worker has to register again, or to leave.
void WorkerPool::Leave() {
  EndCallbacks();
  if (processes_ != nullptr) processes_->Leave();
  CloseListener();
}

void WorkerPool::EndCallbacks() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  if (cluster_ == nullptr) return;
  cluster_->OnSilence(nullptr);
  cluster_->OnStall(nullptr);
}

// Calls that are under way end first, and may need the lock.
void WorkerPool::CloseListener() {
  std::unique_ptr<ClusterServer> cluster;
  std::unique_ptr<WorkerProcesses> processes;
  {
    absl::MutexLock lock(&mu_);
    interruption_ = absl::CancelledError("stopped");
    cluster = std::move(cluster_);
    processes = std::move(processes_);
  }
  cluster.reset();
  absl::MutexLock lock(&mu_);
  run_state_.reset();  // another coordinator may use the directory from now on
}

}  // namespace somnus
