#include "worker/comm/pipeline_communicator.h"

#include <string>
#include <utility>

#include "base/status_macros.h"

namespace somnus {
namespace {

class PipelineCommunicator : public Communicator {
 public:
  PipelineCommunicator(std::unique_ptr<Communicator> stage, std::unique_ptr<StageLink> previous,
                       std::unique_ptr<StageLink> next)
      : stage_(std::move(stage)), previous_(std::move(previous)), next_(std::move(next)) {}

  int rank() const override { return stage_->rank(); }
  int world_size() const override { return stage_->world_size(); }
  bool stream_ordered() const override { return stage_->stream_ordered(); }

  absl::Status AllReduceSum(void* data, int64_t count, DataType type) override {
    return Noted(stage_->AllReduceSum(data, count, type));
  }
  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    return Noted(stage_->AllGather(in, bytes, out));
  }
  absl::Status AllReduceAddRmsNorm(Device& device, const TensorView& residual, const TensorView& delta,
                                   const float* weight, double eps, const TensorView& out) override {
    return Noted(stage_->AllReduceAddRmsNorm(device, residual, delta, weight, eps, out));
  }
  absl::Status Barrier() override { return Noted(stage_->Barrier()); }

  absl::Status SendToNextStage(const void* data, int64_t bytes) override {
    if (next_ == nullptr) return Communicator::SendToNextStage(data, bytes);
    return Noted(next_->Send(data, bytes));
  }
  absl::Status ReceiveFromPreviousStage(void* data, int64_t bytes) override {
    if (previous_ == nullptr) return Communicator::ReceiveFromPreviousStage(data, bytes);
    return Noted(previous_->Receive(data, bytes));
  }
  bool sends_on_stream() const override { return next_ != nullptr && next_->stream_ordered(); }
  bool receives_on_stream() const override { return previous_ != nullptr && previous_->stream_ordered(); }

  void Abort(const std::string& reason) override {
    stage_->Abort(reason);
    if (previous_ != nullptr) previous_->Abort(reason);
    if (next_ != nullptr) next_->Abort(reason);
  }

  absl::Status status() const override {
    RETURN_IF_ERROR(stage_->status());
    if (previous_ != nullptr) RETURN_IF_ERROR(previous_->status());
    return next_ == nullptr ? absl::OkStatus() : next_->status();
  }

  // In the order in which the links have formed, since a call may wait for the other end.
  absl::Status Suspend() override {
    RETURN_IF_ERROR(Noted(stage_->Suspend()));
    if (previous_ != nullptr) RETURN_IF_ERROR(Noted(previous_->Suspend()));
    return next_ == nullptr ? absl::OkStatus() : Noted(next_->Suspend());
  }
  absl::Status Resume() override {
    RETURN_IF_ERROR(Noted(stage_->Resume()));
    if (previous_ != nullptr) RETURN_IF_ERROR(Noted(previous_->Resume()));
    return next_ == nullptr ? absl::OkStatus() : Noted(next_->Resume());
  }

 private:
  absl::Status Noted(absl::Status status) {
    const bool is_callers = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
    if (!status.ok() && !is_callers) Abort(std::string(status.message()));
    return status;
  }

  const std::unique_ptr<Communicator> stage_;
  const std::unique_ptr<StageLink> previous_, next_;
};

}  // namespace

std::unique_ptr<Communicator> MakePipelineCommunicator(std::unique_ptr<Communicator> stage,
                                                       std::unique_ptr<StageLink> previous,
                                                       std::unique_ptr<StageLink> next) {
  return std::make_unique<PipelineCommunicator>(std::move(stage), std::move(previous), std::move(next));
}

}  // namespace somnus
