// The Worker's weights after the load: read again, or brought by an update.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "worker/worker.h"

namespace somnus {
namespace {

constexpr size_t kMaxUpdateIdBytes = 128;

// FailedPrecondition and InvalidArgument mean that nothing has changed (proto/worker.proto): an error of what
// comes before the first write becomes one of them, an error of what comes later another.
absl::Status BeforeWriting(const absl::Status& status) {
  if (status.ok() || absl::IsFailedPrecondition(status)) return status;
  return absl::InvalidArgumentError(status.message());
}
absl::Status AfterWriting(const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status) && !absl::IsInvalidArgument(status)) return status;
  return absl::InternalError(status.message());
}

}  // namespace

absl::StatusOr<v1::WorkerReloadWeightsResponse> Worker::ReloadWeights(
    const v1::WorkerReloadWeightsRequest& request) {
  return InEpoch<absl::StatusOr<v1::WorkerReloadWeightsResponse>>(request.group_epoch(),
                                                                  [&] { return DoReloadWeights(request); });
}

absl::Status Worker::BeginWeightUpdate(const v1::BeginWeightUpdateRequest& request) {
  return InEpoch<absl::Status>(request.group_epoch(), [&] { return DoBeginWeightUpdate(request); });
}

absl::StatusOr<uint64_t> Worker::OpenWeightStream(int64_t epoch, const std::string& update_id) {
  return InEpoch<absl::StatusOr<uint64_t>>(epoch, [&]() -> absl::StatusOr<uint64_t> {
    RETURN_IF_ERROR(RequireUpdate(update_id, "UpdateWeights"));
    update_->tensors->EndStream().IgnoreError();  // of a stream that is lost
    return update_->stream = ++last_weight_stream_;
  });
}

absl::Status Worker::AddWeights(int64_t epoch, uint64_t stream, const v1::WeightChunk& chunk) {
  return InEpoch<absl::Status>(epoch, [&]() -> absl::Status {
    RETURN_IF_ERROR(RequireStream(stream));
    RETURN_IF_ERROR(RequireWritableWeights("UpdateWeights"));
    return update_->tensors->Add(chunk);
  });
}

absl::StatusOr<v1::WorkerUpdateWeightsResponse> Worker::CloseWeightStream(int64_t epoch, uint64_t stream) {
  using Response = absl::StatusOr<v1::WorkerUpdateWeightsResponse>;
  return InEpoch<Response>(epoch, [&]() -> Response {
    RETURN_IF_ERROR(RequireStream(stream));
    update_->stream = 0;
    RETURN_IF_ERROR(update_->tensors->EndStream());
    return Received();
  });
}

absl::StatusOr<v1::WorkerUpdateWeightsResponse> Worker::ReceivedWeights(int64_t epoch,
                                                                        const std::string& update_id) {
  using Response = absl::StatusOr<v1::WorkerUpdateWeightsResponse>;
  return InEpoch<Response>(epoch, [&]() -> Response {
    RETURN_IF_ERROR(RequireUpdate(update_id, "UpdateWeights"));
    return Received();
  });
}

v1::WorkerUpdateWeightsResponse Worker::Received() const {
  v1::WorkerUpdateWeightsResponse response;
  response.set_num_tensors(update_->tensors->num_tensors());
  response.set_num_bytes(update_->tensors->num_bytes());
  response.set_checksum(update_->tensors->checksum());
  return response;
}

absl::Status Worker::FinishWeightUpdate(const v1::FinishWeightUpdateRequest& request) {
  return InEpoch<absl::Status>(request.group_epoch(), [&] { return DoFinishWeightUpdate(request); });
}

absl::Status Worker::RequireWritableWeights(const char* call) const {
  RETURN_IF_ERROR(
      lifecycle_.Require({WorkerState::kLoaded, WorkerState::kAwake, WorkerState::kAsleep}, call));
  if (prepared_.has_value())
    return absl::FailedPreconditionError(absl::StrCat(call, ": a transition is prepared"));
  if (allocator_->Stats()[kWeightsTag].sleeping == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": the memory of weights sleeps"));
}

absl::Status Worker::RequireUpdate(const std::string& update_id, const char* call) const {
  if (update_.has_value() && update_->id == update_id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(call, ": update ", update_id.substr(0, kMaxUpdateIdBytes), " is not under way"));
}

absl::Status Worker::RequireStream(uint64_t stream) const {
  if (update_.has_value() && update_->stream == stream) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "UpdateWeights: the stream's update is over, or another stream has begun");
}

absl::StatusOr<Worker::Files> Worker::OpenFiles(const std::string& path) const {
  Files files;
  // The files are also the backup of a worker that was asleep from its load on, whatever the policy is.
  if (load_options_.checkpoint_is_backup || !load_request_.asleep_tags().empty()) {
    ASSIGN_OR_RETURN(files.source.stamp, parts_.stamp(path, load_format_));
  }
  ASSIGN_OR_RETURN(files.source.fingerprint, parts_.fingerprint(path, load_format_));
  ASSIGN_OR_RETURN(files.checkpoint, parts_.open_checkpoint(path, load_format_));
  return files;
}

absl::StatusOr<Worker::Files> Worker::OpenFilesForLayout(const std::string& path) {
  Files files;
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = parts_.open_checkpoint(path, load_format_);
  if (!checkpoint.ok()) {  // as of a group with random weights: config.json is enough
    load_format_ = LoadFormat::kDummy;
    if (auto dummy = parts_.open_checkpoint(path, load_format_); dummy.ok()) checkpoint = std::move(dummy);
  }
  RETURN_IF_ERROR(checkpoint.status());
  files.checkpoint = *std::move(checkpoint);
  return files;
}

// What a level-2 sleep has given up are those files' weights. Of other files there may be some on every rank,
// or on this one alone: those are for a reload, which gives them a version of their own.
absl::StatusOr<Worker::Source> Worker::ReadSource() {
  RETURN_IF_ERROR(CheckCheckpointBackup());
  ASSIGN_OR_RETURN(const Files files, OpenFiles(load_request_.model_path()));
  const std::string& fingerprint = files.source.fingerprint;
  if (const std::string before = weights_.fingerprint(); fingerprint != before) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint has changed since its weights were read, from fingerprint ", before,
                     " to ", fingerprint, ": somnus reload-weights reads what is there now"));
  }
  const absl::Status read = runner_->ReloadWeights(*files.checkpoint, [this](int64_t loaded, int64_t total) {
    transition_meter_.NoteRead(loaded, total);
  });
  RETURN_IF_ERROR(CheckCheckpointBackup());  // a change while they were read
  RETURN_IF_ERROR(read);
  return files.source;
}

void Worker::SetRead(int64_t version, const Source& source) {
  weights_.SetRead(version, source.fingerprint);
  checkpoint_backup_.SetRead(source.stamp);
}

bool Worker::CheckpointBacksUp() const {
  return load_options_.checkpoint_is_backup && weights_.in_checkpoint() && !weights_.stale();
}

absl::Status Worker::CheckCheckpointBackup() const {
  if (!checkpoint_backup_.in_use()) return absl::OkStatus();
  return checkpoint_backup_.Check(parts_.stamp(load_request_.model_path(), load_format_));
}

// To the allocator the weights are discarded: it knows no backup but its own.
void Worker::CommitCheckpointBackup(v1::TagReport* weights) {
  if (prepared_->checkpoint_backs_up) {
    checkpoint_backup_.Begin(allocator_->Stats()[kWeightsTag].sleeping);
    weights->set_discarded_bytes(0);
  } else if (checkpoint_backup_.in_use()) {
    weights->set_discarded_bytes(checkpoint_backup_.bytes());
    checkpoint_backup_.End();
  }
}

absl::StatusOr<Worker::Files> Worker::OpenForReload(const std::string& path) const {
  ASSIGN_OR_RETURN(Files files, OpenFiles(path));
  RETURN_IF_ERROR(runner_->CheckReload(*files.checkpoint));
  return files;
}

absl::StatusOr<v1::WorkerReloadWeightsResponse> Worker::DoReloadWeights(
    const v1::WorkerReloadWeightsRequest& request) {
  RETURN_IF_ERROR(RequireWritableWeights("ReloadWeights"));
  RETURN_IF_ERROR(CheckWeightsVersion(request.weights_version()));
  const MonotonicTime begin = MonotonicNow();
  const std::string path = request.model_path().empty() ? load_request_.model_path() : request.model_path();
  const absl::StatusOr<Files> files = OpenForReload(path);
  RETURN_IF_ERROR(BeforeWriting(files.status()));
  weights_.SetOverwritten();
  update_.reset();
  absl::Status written = device_->Synchronize();  // nothing may run on weights that are replaced
  if (written.ok()) written = runner_->ReloadWeights(*files->checkpoint, [](int64_t, int64_t) {});
  if (written.ok()) written = device_->Synchronize();
  RETURN_IF_ERROR(AfterWriting(written));
  SetRead(request.weights_version(), files->source);
  load_request_.set_model_path(path);  // for the next wake-up from level 2
  v1::WorkerReloadWeightsResponse response;
  response.set_weights_version(weights_.version());
  response.set_checkpoint_fingerprint(files->source.fingerprint);
  response.set_seconds(absl::ToDoubleSeconds(MonotonicNow() - begin));
  return response;
}

absl::Status Worker::DoBeginWeightUpdate(const v1::BeginWeightUpdateRequest& request) {
  const std::string& update_id = request.update_id();
  RETURN_IF_ERROR(RequireWritableWeights("BeginWeightUpdate"));
  if (update_id.empty() || update_id.size() > kMaxUpdateIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("update_id: has ", update_id.size(), " bytes, not 1 to ", kMaxUpdateIdBytes));
  }
  RETURN_IF_ERROR(device_->Synchronize());  // nothing may run on weights that are replaced
  ASSIGN_OR_RETURN(std::unique_ptr<UpdatedTensors> tensors,
                   runner_->BeginWeightUpdate(/*needs_all=*/weights_.stale()));
  for (const v1::WeightChunk& tensor : request.tensors()) RETURN_IF_ERROR(tensors->Check(tensor));
  weights_.SetOverwritten();
  update_ = Update{.id = update_id, .tensors = std::move(tensors)};
  return absl::OkStatus();
}

absl::Status Worker::DoFinishWeightUpdate(const v1::FinishWeightUpdateRequest& request) {
  RETURN_IF_ERROR(RequireUpdate(request.update_id(), "FinishWeightUpdate"));
  RETURN_IF_ERROR(RequireWritableWeights("FinishWeightUpdate"));
  RETURN_IF_ERROR(CheckWeightsVersion(request.weights_version()));
  RETURN_IF_ERROR(update_->tensors->CheckComplete());
  RETURN_IF_ERROR(device_->Synchronize());  // what was packed is in place
  weights_.SetUpdated(request.weights_version(), request.update_id());
  update_.reset();
  return absl::OkStatus();
}

}  // namespace somnus
