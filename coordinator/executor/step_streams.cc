#include "coordinator/executor/step_streams.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/limits.h"
#include "proto/status.h"

namespace somnus {

StepStreams::~StepStreams() {
  for (RankStream& rank : streams_) {
    if (rank.stream == nullptr) continue;
    rank.stream->Finish();
    latch_.Unregister(rank.context.get());
  }
}

absl::Status StepStreams::Send(const v1::StepRequest& step) {
  if (const size_t bytes = step.ByteSizeLong(); bytes > static_cast<size_t>(kMaxWorkerMessageBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step.step_id(), " takes ", bytes,
                                                   " bytes, more than ", kMaxWorkerMessageBytes));
  }
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    if (streams_[rank].stream == nullptr && !Open(rank)) return latch_.status();
    if (!streams_[rank].stream->Write(step)) return Broke(rank);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::StepReply> StepStreams::Receive(int64_t step_id) {
  v1::StepReply first;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const std::string& name = workers_[rank].name;
    waiting_for_.store(rank);
    v1::StepReply reply;
    if (!streams_[rank].stream->Read(&reply)) return Broke(rank);
    if (reply.error_code() != 0) {
      const absl::Status error(static_cast<absl::StatusCode>(reply.error_code()), reply.error_message());
      return latch_.Blame(Annotate(error, absl::StrCat(name, " failed step ", step_id)), blame_grace_);
    }
    if (reply.step_id() != step_id) {
      return latch_.Blame(absl::InternalError(absl::StrCat(name, " replied to step ", reply.step_id(),
                                                           " where ", step_id, " was due")),
                          blame_grace_);
    }
    if (rank == 0) first = std::move(reply);
  }
  return first;
}

void StepStreams::Close() {
  for (RankStream& rank : streams_) {
    if (rank.stream != nullptr) rank.stream->WritesDone();
  }
}

bool StepStreams::Open(size_t rank) {
  streams_[rank].context = std::make_unique<grpc::ClientContext>();
  if (!latch_.Register(streams_[rank].context.get())) return false;
  streams_[rank].stream = workers_[rank].stub->Execute(streams_[rank].context.get());
  return true;
}

absl::Status StepStreams::Broke(size_t rank) {
  return latch_.Blame(absl::UnavailableError(absl::StrCat(workers_[rank].name, " closed its step stream")),
                      blame_grace_);
}

}  // namespace somnus
