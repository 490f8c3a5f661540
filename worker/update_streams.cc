#include "worker/update_streams.h"

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/status.h"
#include "proto/worker.grpc.pb.h"
#include "worker/worker.h"

namespace somnus {
namespace {

// One is in use; the others are those of lost coordinators, which are ending.
constexpr size_t kMaxOpenStreams = 8;

}  // namespace

// Keeps a stream in the list while it is served.
class UpdateStreams::Registration {
 public:
  Registration(UpdateStreams* streams, grpc::ServerContext* context) : streams_(streams) {
    absl::MutexLock lock(&streams_->mu_);
    admitted_ = streams_->open_.size() < kMaxOpenStreams;
    self_ = streams_->open_.insert(streams_->open_.end(), context);
  }
  ~Registration() {
    absl::MutexLock lock(&streams_->mu_);
    streams_->open_.erase(self_);
  }
  bool admitted() const { return admitted_; }

 private:
  UpdateStreams* const streams_;
  std::list<grpc::ServerContext*>::iterator self_;
  bool admitted_ = false;
};

grpc::Status UpdateStreams::Serve(grpc::ServerContext* context, Reader* reader,
                                  v1::WorkerUpdateWeightsResponse* response) {
  const Registration registration(this, context);
  if (!registration.admitted()) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                        absl::StrCat("UpdateWeights: ", kMaxOpenStreams, " streams are open"));
  }
  return ToGrpcStatus(ServeChunks(reader, response));
}

absl::Status UpdateStreams::ServeChunks(Reader* reader, v1::WorkerUpdateWeightsResponse* response) {
  v1::WorkerUpdateWeightsRequest request;
  if (!reader->Read(&request))
    return absl::InvalidArgumentError("UpdateWeights: a stream begins with its epoch and update");
  const int64_t epoch = request.group_epoch();
  const std::string update_id = request.update_id();
  ASSIGN_OR_RETURN(const uint64_t stream, worker_->OpenWeightStream(epoch, update_id));
  absl::Status status;
  do {
    const bool same = (request.group_epoch() == 0 || request.group_epoch() == epoch) &&
                      (request.update_id().empty() || request.update_id() == update_id);
    status = same ? worker_->AddWeights(epoch, stream, request.chunk())
                  : absl::InvalidArgumentError("UpdateWeights: a stream has one epoch and one update");
  } while (status.ok() && reader->Read(&request));
  // Also when the sender is gone: memory that was taken for a part of a tensor is given back.
  absl::StatusOr<v1::WorkerUpdateWeightsResponse> closed = worker_->CloseWeightStream(epoch, stream);
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(closed.status());
  *response = *std::move(closed);
  return absl::OkStatus();
}

void UpdateStreams::CancelAll() {
  absl::MutexLock lock(&mu_);
  for (grpc::ServerContext* context : open_) context->TryCancel();
}

}  // namespace somnus
