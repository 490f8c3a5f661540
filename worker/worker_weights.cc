#include "worker/worker_weights.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/host_memory.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

// FailedPrecondition and InvalidArgument mean that nothing has changed (proto/worker.proto): an error before
// the first write becomes one of the two, an error after the first write gets a different code.
absl::Status BeforeWriting(const absl::Status& status) {
  if (status.ok() || absl::IsFailedPrecondition(status)) return status;
  return absl::InvalidArgumentError(status.message());
}
absl::Status AfterWriting(const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status) && !absl::IsInvalidArgument(status)) return status;
  return absl::InternalError(status.message());
}

}  // namespace

absl::StatusOr<WorkerWeights::Files> WorkerWeights::OpenForLoad() {
  const v1::LoadModelRequest& request = load_.request();
  path_ = request.model_path();
  load_format_ = request.load_format() == v1::LOAD_FORMAT_DUMMY ? LoadFormat::kDummy : LoadFormat::kAuto;
  return load_.has_source() ? OpenFiles(path_) : OpenForLayout();
}

absl::StatusOr<WorkerWeights::Files> WorkerWeights::OpenFiles(const std::string& path) const {
  Files files;
  // The files are also the backup of a worker that was asleep from its load on, under every policy.
  if (load_.options().checkpoint_is_backup || !load_.request().asleep_tags().empty()) {
    ASSIGN_OR_RETURN(files.source.stamp, parts_.stamp(path, load_format_));
  }
  ASSIGN_OR_RETURN(files.source.fingerprint, parts_.fingerprint(path, load_format_));
  ASSIGN_OR_RETURN(files.checkpoint, parts_.open_checkpoint(path, load_format_));
  return files;
}

absl::StatusOr<WorkerWeights::Files> WorkerWeights::OpenForLayout() {
  Files files;
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = parts_.open_checkpoint(path_, load_format_);
  if (!checkpoint.ok()) {  // a group with random weights has config.json alone
    load_format_ = LoadFormat::kDummy;
    if (auto dummy = parts_.open_checkpoint(path_, load_format_); dummy.ok()) checkpoint = std::move(dummy);
  }
  RETURN_IF_ERROR(checkpoint.status());
  files.checkpoint = *std::move(checkpoint);
  return files;
}

void WorkerWeights::SetLoaded(const Source& source, v1::LoadModelEvent* event) {
  const v1::LoadModelRequest& request = load_.request();
  if (load_.has_source()) {
    SetRead(request.weights_version(), source);
  } else {
    record_.SetOverwritten();
  }
  if (load_.weights_sleep()) {
    if (load_.has_source() && request.sleep_level() < kMaxSleepLevel) {
      backup_.Begin(load_.allocator()->Stats()[kWeightsTag].sleeping);
    } else {
      record_.SetDiscarded();
    }
  }
  event->set_weights_version(record_.version());
  event->set_checkpoint_fingerprint(record_.fingerprint());
}

void WorkerWeights::SetRead(int64_t version, const Source& source) {
  record_.SetRead(version, source.fingerprint);
  backup_.SetRead(source.stamp);
}

absl::Status WorkerWeights::RequireMapped(const char* call) const {
  RETURN_IF_ERROR(
      lifecycle_.Require({WorkerState::kLoaded, WorkerState::kAwake, WorkerState::kAsleep}, call));
  RETURN_IF_ERROR(lifecycle_.RequireNoTransition(call));
  if (load_.allocator()->Stats()[kWeightsTag].sleeping == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": the memory of weights sleeps"));
}

absl::StatusOr<WorkerWeights::Files> WorkerWeights::OpenForReload(const std::string& path) const {
  ASSIGN_OR_RETURN(Files files, OpenFiles(path));
  RETURN_IF_ERROR(load_.runner()->CheckReload(*files.checkpoint));
  return files;
}

absl::StatusOr<v1::WorkerReloadWeightsResponse> WorkerWeights::Reload(
    const v1::WorkerReloadWeightsRequest& request) {
  RETURN_IF_ERROR(RequireMapped("ReloadWeights"));
  RETURN_IF_ERROR(CheckWeightsVersion(request.weights_version()));
  const MonotonicTime begin = MonotonicNow();
  const std::string path = request.model_path().empty() ? path_ : request.model_path();
  const absl::StatusOr<Files> files = OpenForReload(path);
  RETURN_IF_ERROR(BeforeWriting(files.status()));
  record_.SetOverwritten();
  update_.Drop();
  absl::Status written = load_.device()->Synchronize();  // nothing may run on weights that are replaced
  if (written.ok()) written = load_.runner()->ReloadWeights(*files->checkpoint, [](int64_t, int64_t) {});
  if (written.ok()) written = load_.device()->Synchronize();
  RETURN_IF_ERROR(AfterWriting(written));
  SetRead(request.weights_version(), files->source);
  path_ = path;
  v1::WorkerReloadWeightsResponse response;
  response.set_weights_version(record_.version());
  response.set_checkpoint_fingerprint(files->source.fingerprint);
  response.set_seconds(absl::ToDoubleSeconds(MonotonicNow() - begin));
  return response;
}

absl::Status WorkerWeights::BeginUpdate(const v1::BeginWeightUpdateRequest& request) {
  RETURN_IF_ERROR(RequireMapped("BeginWeightUpdate"));
  RETURN_IF_ERROR(RankUpdate::CheckId(request.update_id()));
  RETURN_IF_ERROR(load_.device()->Synchronize());  // nothing may run on weights that are replaced
  ASSIGN_OR_RETURN(std::unique_ptr<UpdatedTensors> tensors,
                   load_.runner()->BeginWeightUpdate(/*needs_all=*/record_.stale()));
  for (const v1::WeightChunk& tensor : request.tensors()) RETURN_IF_ERROR(tensors->Check(tensor));
  record_.SetOverwritten();
  update_.Begin(request.update_id(), std::move(tensors));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WeightChecksums>> WorkerWeights::BeginChecksums() const {
  RETURN_IF_ERROR(RequireMapped("ChecksumWeights"));
  if (record_.stale()) return absl::FailedPreconditionError("ChecksumWeights: the weights are stale");
  return std::make_unique<WeightChecksums>(record_.version(), load_.runner()->weight_pieces());
}

absl::Status WorkerWeights::AddToChecksums(WeightChecksums* sums) const {
  RETURN_IF_ERROR(RequireMapped("ChecksumWeights"));
  if (record_.stale() || record_.version() != sums->version())
    return absl::AbortedError("ChecksumWeights: the weights have changed meanwhile");
  return sums->AddPart(load_.device());
}

absl::Status WorkerWeights::AddChunk(uint64_t stream, const v1::WeightChunk& chunk) {
  RETURN_IF_ERROR(update_.RequireStream(stream));
  RETURN_IF_ERROR(RequireMapped("UpdateWeights"));
  return update_.tensors()->Add(chunk);
}

absl::Status WorkerWeights::FinishUpdate(const v1::FinishWeightUpdateRequest& request) {
  RETURN_IF_ERROR(update_.Require(request.update_id(), "FinishWeightUpdate"));
  RETURN_IF_ERROR(RequireMapped("FinishWeightUpdate"));
  RETURN_IF_ERROR(CheckWeightsVersion(request.weights_version()));
  RETURN_IF_ERROR(update_.tensors()->CheckComplete());
  RETURN_IF_ERROR(load_.device()->Synchronize());  // so that the packed tensors are in place
  record_.SetUpdated(request.weights_version(), request.update_id());
  update_.Drop();
  return absl::OkStatus();
}

absl::StatusOr<v1::PrefetchResponse> WorkerWeights::Prefetch(double cpu_share) {
  if (!(cpu_share >= 0 && cpu_share <= 1))
    return absl::InvalidArgumentError(absl::StrCat("cpu_share: ", cpu_share, " is not from 0 to 1"));
  v1::PrefetchResponse response;
  const bool sleeps = record_.discarded() || backup_.in_use();
  if (!sleeps || !record_.in_checkpoint() || lifecycle_.transition_prepared()) return response;
  if (prefetch_ == nullptr) {
    ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, parts_.open_checkpoint(path_, load_format_));
    ASSIGN_OR_RETURN(std::vector<FileRange> ranges, load_.runner()->WeightRanges(*checkpoint));
    // The bytes must still be in the page cache at the wake-up, beside the bytes that other processes read
    // meanwhile.
    WeightPrefetchOptions options{.max_bytes = AvailableHostMemory() / 2};
    if (cpu_share > 0) options.cpu_share = cpu_share;
    prefetch_ = std::make_unique<WeightPrefetch>(std::move(checkpoint), std::move(ranges), options);
  }
  response.set_num_bytes(prefetch_->num_bytes());
  return response;
}

absl::Status WorkerWeights::RequireSource() const {
  if (record_.in_checkpoint()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "weights: they are stale, and no checkpoint has them: somnus reload-weights or an update has to bring "
      "them");
}

bool WorkerWeights::CheckpointBacksUp() const {
  return load_.options().checkpoint_is_backup && record_.in_checkpoint() && !record_.stale();
}

bool WorkerWeights::WakeReads(bool skip) const {
  if (backup_.in_use()) return true;
  return (record_.discarded() || record_.stale()) && record_.in_checkpoint() && !skip;
}

// A level-2 sleep has given up the weights of the files as they were read. Different files would have come to
// every rank, or to this rank alone: a reload reads such files, and gives the weights a version of their own.
absl::StatusOr<WorkerWeights::Source> WorkerWeights::ReadSource(const ModelRunner::Progress& progress) {
  RETURN_IF_ERROR(CheckBackup());
  ASSIGN_OR_RETURN(const Files files, OpenFiles(path_));
  const std::string& fingerprint = files.source.fingerprint;
  if (const std::string before = record_.fingerprint(); fingerprint != before) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint has changed since its weights were read, from fingerprint ", before,
                     " to ", fingerprint, ": somnus reload-weights reads what is there now"));
  }
  const absl::Status read = load_.runner()->ReloadWeights(*files.checkpoint, progress);
  RETURN_IF_ERROR(CheckBackup());  // the files may have changed while they were read
  RETURN_IF_ERROR(read);
  return files.source;
}

absl::Status WorkerWeights::CheckBackup() const {
  if (!backup_.in_use()) return absl::OkStatus();
  return backup_.Check(parts_.stamp(path_, load_format_));
}

void WorkerWeights::CommitSleep(int level, bool checkpoint_backs_up, v1::TagReport* report) {
  update_.Drop();
  if (checkpoint_backs_up) {
    backup_.Begin(load_.allocator()->Stats()[kWeightsTag].sleeping);
    report->set_discarded_bytes(0);
  } else if (backup_.in_use()) {
    report->set_discarded_bytes(backup_.bytes());
    backup_.End();
  }
  if (level == kMaxSleepLevel || record_.stale()) record_.SetDiscarded();
}

void WorkerWeights::CommitWake(const Source* read) {
  backup_.End();
  if (read != nullptr) {
    SetRead(record_.source_version(), *read);
  } else if (record_.discarded()) {
    record_.SetUnread();
  }
}

}  // namespace somnus
