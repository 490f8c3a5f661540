#pragma once
// WorkerService over a FakeWorker, in this process, on a Unix socket of its own, for tests of GrpcExecutor.
// The scripting methods are thread safe.

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/limits.h"
#include "proto/options_digest.h"
#include "proto/status.h"
#include "tests/fakes/fake_checks.h"
#include "tests/fakes/fake_memory.h"
#include "tests/fakes/fake_weights.h"
#include "tests/fakes/fake_worker.h"

namespace somnus {

class FakeWorkerService : public FakeChecks {
 public:
  static constexpr int kOpenPort = 4711, kOpenLinkPort = 4712;  // the ports in NewGroup's reply

  // `path` is the socket's, of at most 100 bytes; without a path the service listens on a free port of the
  // loopback.
  FakeWorkerService(const FakeWorkerOptions& options, const std::string& path)
      : address_(path.empty() ? "127.0.0.1:0" : "unix:" + path), worker_(options) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(kMaxWorkerMessageBytes);
    builder.SetMaxSendMessageSize(kMaxWorkerMessageBytes);
    server_ = builder.BuildAndStart();
    if (path.empty()) address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeWorkerService() override { Die(); }
  const std::string& address() const { return address_; }
  // Cuts every connection, as the end of a process does; no call gets a reply any more.
  void Die() {
    {
      absl::MutexLock lock(&mu_);
      dead_ = true;
    }
    server_->Shutdown(std::chrono::system_clock::now());
  }
  void Hold(bool held) {
    absl::MutexLock lock(&mu_);
    held_ = held;
  }
  void FailStep(int64_t step_id) {
    absl::MutexLock lock(&mu_);
    failing_step_ = step_id;
  }
  // Steps have no tokens in their replies and await no masks, as of a rank that does not sample.
  void Mute() {
    absl::MutexLock lock(&mu_);
    muted_ = true;
  }
  // The results of the next lifecycle calls (LoadModel, AllocateKvCache, Prepare, Commit, Abort), in order;
  // ok afterwards. A call that returns an error has changed nothing.
  void FailNextCall(const absl::Status& error) { ScriptCalls({error}); }
  void ScriptCalls(std::deque<absl::Status> answers) {
    absl::MutexLock lock(&mu_);
    answers_ = std::move(answers);
  }
  void FailNextRead(const absl::Status& error) {
    absl::MutexLock lock(&mu_);
    read_error_ = error;
  }
  // Lifecycle calls, or only calls of this name, do their work only after ReleaseCalls, as on a rank with a
  // slow device. A fence is held by its name alone.
  void HoldCalls(const std::string& name = "") {
    absl::MutexLock lock(&mu_);
    held_calls_ = name;
  }
  void ReleaseCalls() {
    absl::MutexLock lock(&mu_);
    held_calls_.reset();
  }
  // The replies to the next `count` calls of Prepare, Commit and Abort get lost with their connection.
  void LoseReplies(int count) {
    absl::MutexLock lock(&mu_);
    num_lost_replies_ = count;
  }
  // Plan's answer about the memory that a wake-up would take.
  void SetAvailableBytes(int64_t bytes, const std::string& pool = "") {
    absl::MutexLock lock(&mu_);
    memory_.SetAvailableBytes(bytes, pool);
  }
  std::vector<std::string> calls() const {
    absl::MutexLock lock(&mu_);
    return calls_;
  }
  int num_plans() const {  // which are not among the calls
    absl::MutexLock lock(&mu_);
    return num_plans_;
  }

  // The fingerprint in the next Fence's reply.
  void SetFingerprint(const std::string& fingerprint) {
    absl::MutexLock lock(&mu_);
    weights_.SetFingerprint(fingerprint);
  }
  void EditWeights(const std::function<void(FakeWeights*)>& edit) {
    absl::MutexLock lock(&mu_);
    edit(&weights_);
  }
  // Chunks of the last update, by the tensors' names.
  std::vector<std::string> chunks() const {
    absl::MutexLock lock(&mu_);
    return weights_.chunks();
  }
  void SetState(const std::string& state) {  // that Fence reports from now on: "failed"
    absl::MutexLock lock(&mu_);
    state_ = state;
  }

  std::vector<v1::StepMasks> mask_messages() const {  // as they came, without those within a step
    absl::MutexLock lock(&mu_);
    return mask_messages_;
  }

  v1::ParallelConfig parallel() const {  // of the last JoinGroup
    absl::MutexLock lock(&mu_);
    return parallel_;
  }

  grpc::Status Fence(grpc::ServerContext*, const v1::FenceRequest* request,
                     v1::FenceResponse* response) override {
    absl::MutexLock lock(&mu_);
    const auto goes_on = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return dead_ || held_calls_ != absl::StrCat("fence ", request->group_epoch());
    };
    mu_.Await(absl::Condition(&goes_on));
    if (dead_) return grpc::Status::CANCELLED;
    if (request->group_epoch() < epoch_) return Refusal(request->group_epoch());
    if (request->group_epoch() > epoch_) calls_.push_back(absl::StrCat("fence ", request->group_epoch()));
    if (request->group_epoch() > epoch_) worker_.Replace(), memory_.Abort();
    epoch_ = request->group_epoch();
    *response->mutable_snapshot() = MakeSnapshot();
    return grpc::Status::OK;
  }
  v1::WorkerSnapshot Snapshot() const {
    absl::MutexLock lock(&mu_);
    return MakeSnapshot();
  }

  grpc::Status NewGroup(grpc::ServerContext*, const v1::NewGroupRequest* request,
                        v1::NewGroupResponse* response) override {
    if (!request->listen_host().empty()) {
      response->set_port(kOpenPort);
      if (request->opens_link()) response->set_link_port(kOpenLinkPort);
      return Called(request->group_epoch(), absl::StrCat("new group at ", request->listen_host()));
    }
    response->set_nccl_unique_id(std::string("\0made by ", 9) + address_);
    return Called(request->group_epoch(), "new group");
  }

  grpc::Status LoadModel(grpc::ServerContext*, const v1::LoadModelRequest* request,
                         grpc::ServerWriter<v1::LoadModelEvent>* writer) override {
    const int32_t rank = request->parallel().rank();
    const grpc::Status status = Called(request->group_epoch(), FakeMemory::Describe(*request),
                                       [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                                         rank_ = rank;
                                         world_size_ = request->parallel().world_size();
                                         options_digest_ = OptionsDigest(*request);
                                         weights_.Load(*request);
                                         memory_.Load(*request);
                                         state_ = "loaded";
                                       });
    if (!status.ok()) return status;
    for (int64_t bytes : {50, 100}) {
      v1::LoadModelEvent event;
      event.set_bytes_loaded(bytes);
      event.set_bytes_total(100);
      writer->Write(event);
    }
    v1::LoadModelEvent last;
    last.set_done(true);
    last.set_bytes_loaded(request->load_format() == v1::LOAD_FORMAT_NONE ? 0 : 100);
    last.set_weights_bytes(100);
    last.set_kv_block_bytes(10 + rank);
    absl::MutexLock lock(&mu_);
    last.set_checkpoint_fingerprint(weights_.fingerprint());
    writer->Write(last);
    return grpc::Status::OK;
  }

  grpc::Status JoinGroup(grpc::ServerContext*, const v1::JoinGroupRequest* request,
                         v1::JoinGroupResponse* response) override {
    return Called(request->group_epoch(), absl::StrCat("join ", request->parallel().group_name()),
                  [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                    parallel_ = request->parallel();
                    response->set_weights_version(weights_.version());
                  });
  }

  grpc::Status Profile(grpc::ServerContext*, const v1::ProfileRequest* request,
                       v1::ProfileResponse* response) override {
    response->set_available_kv_cache_memory_bytes(1000);
    return Called(request->group_epoch(), "profile");
  }

  grpc::Status AllocateKvCache(grpc::ServerContext*, const v1::AllocateKvCacheRequest* request,
                               v1::AllocateKvCacheResponse*) override {
    return Called(request->group_epoch(), FakeMemory::Describe(*request),
                  [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                    memory_.Allocate(request->kv_cache()), state_ = "awake";
                  });
  }
  grpc::Status ResizeKvCache(grpc::ServerContext*, const v1::ResizeKvCacheRequest* request,
                             v1::ResizeKvCacheResponse* response) override {
    return CalledOnce(
        *request, response, absl::StrCat("resize ", request->num_blocks()),
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { memory_.Resize(request->num_blocks(), response); });
  }

  grpc::Status Execute(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::StepReply, v1::StepRequest>* stream) override {
    v1::StepRequest request, awaits;  // `awaits`: the step that awaits masks
    while (stream->Read(&request)) {
      v1::StepReply reply;
      if (request.awaits_masks() && !muted()) {
        awaits = request;
        continue;
      }
      if (request.step_id() == 0 && request.has_masks()) {
        NoteMasks(request.masks());
        awaits.mutable_masks()->MergeFrom(request.masks());
        if (request.masks().has_more()) continue;
        request = awaits;
      }
      {
        absl::MutexLock lock(&mu_);
        const auto released = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return dead_ || !held_; };
        while (!mu_.AwaitWithTimeout(absl::Condition(&released), absl::Milliseconds(20))) {
          if (context->IsCancelled()) return grpc::Status::CANCELLED;
        }
        if (dead_) return grpc::Status::CANCELLED;
        reply = Answer(request);
      }
      stream->Write(reply);
    }
    return grpc::Status::OK;
  }

  grpc::Status Plan(grpc::ServerContext*, const v1::PlanRequest* request,
                    v1::PlanResponse* response) override {
    absl::MutexLock lock(&mu_);
    if (dead_) return grpc::Status::CANCELLED;
    if (request->group_epoch() != epoch_) return Refusal(request->group_epoch());
    ++num_plans_;
    *response = memory_.Plan(request->transition());
    return grpc::Status::OK;
  }
  grpc::Status Prepare(grpc::ServerContext*, const v1::PrepareRequest* request,
                       v1::PrepareResponse* response) override {
    return CalledOnce(*request, response, FakeMemory::Describe(*request),
                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { memory_.Prepare(*request); });
  }
  grpc::Status Commit(grpc::ServerContext*, const v1::CommitRequest* request,
                      v1::CommitResponse* response) override {
    return CalledOnce(*request, response, "commit", [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      *response = memory_.Commit(request->prepare_operation_id());
    });
  }
  grpc::Status Abort(grpc::ServerContext*, const v1::AbortRequest* request,
                     v1::AbortResponse* response) override {
    return CalledOnce(*request, response, "abort",
                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { memory_.Abort(); });
  }
  grpc::Status ReloadWeights(grpc::ServerContext*, const v1::WorkerReloadWeightsRequest* request,
                             v1::WorkerReloadWeightsResponse* response) override {
    return CalledOnce(*request, response, absl::StrCat("reload ", request->model_path()),
                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { weights_.Reload(*request, response); });
  }
  grpc::Status BeginWeightUpdate(grpc::ServerContext*, const v1::BeginWeightUpdateRequest* request,
                                 v1::BeginWeightUpdateResponse* response) override {
    return CalledOnce(*request, response, "begin update",
                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { weights_.BeginUpdate(*request, response); });
  }
  grpc::Status UpdateWeights(grpc::ServerContext* context, UpdateReader* reader,
                             v1::WorkerUpdateWeightsResponse* response) override {
    PassStream(context);
    v1::WorkerUpdateWeightsRequest request;
    for (bool is_first = true; reader->Read(&request); is_first = false) {
      absl::MutexLock lock(&mu_);
      if (absl::Status status = weights_.Add(request, is_first); !status.ok()) return ToGrpcStatus(status);
    }
    absl::MutexLock lock(&mu_);
    response->set_num_tensors(weights_.num_received());
    return grpc::Status::OK;
  }
  grpc::Status FinishWeightUpdate(grpc::ServerContext*, const v1::FinishWeightUpdateRequest* request,
                                  v1::FinishWeightUpdateResponse* response) override {
    absl::Status finished;
    const grpc::Status status =
        CalledOnce(*request, response, "finish update",
                   [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { finished = weights_.FinishUpdate(*request); });
    return finished.ok() ? status : ToGrpcStatus(finished);
  }
  // "read adapters poet"; as another thread than the runner's, where it is not held.
  grpc::Status ReadAdapters(grpc::ServerContext* context, const v1::ReadAdaptersRequest* request,
                            v1::ReadAdaptersResponse*) override {
    std::string call = "read adapters";
    for (const v1::WorkerAdapter& adapter : request->adapters()) absl::StrAppend(&call, " ", adapter.name());
    absl::MutexLock lock(&mu_);
    if (request->group_epoch() != epoch_) return Refusal(request->group_epoch());
    calls_.push_back(call);
    const auto goes_on = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return held_calls_ != call; };
    while (!mu_.AwaitWithTimeout(absl::Condition(&goes_on), absl::Milliseconds(20))) {
      if (context->IsCancelled()) return grpc::Status::CANCELLED;
    }
    const absl::Status answer = std::exchange(read_error_, absl::OkStatus());
    return ToGrpcStatus(answer);
  }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::WorkerStatusRequest*,
                         v1::WorkerStatusResponse* response) override {
    absl::MutexLock lock(&mu_);
    memory_.Fill(response);
    return grpc::Status::OK;
  }
  grpc::Status Shutdown(grpc::ServerContext*, const v1::WorkerShutdownRequest* request,
                        v1::WorkerShutdownResponse*) override {
    return Called(request->group_epoch(), "shutdown");
  }

 private:
  v1::WorkerSnapshot MakeSnapshot() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    v1::WorkerSnapshot snapshot;
    snapshot.set_group_epoch(epoch_);
    snapshot.set_state(state_);
    if (state_ == "created") return snapshot;
    snapshot.set_rank(rank_);
    snapshot.set_world_size(world_size_);
    snapshot.set_weights_version(weights_.version());
    snapshot.set_weights_stale(weights_.stale());
    snapshot.set_options_digest(options_digest_);
    snapshot.set_checkpoint_fingerprint(weights_.fingerprint());
    snapshot.set_weights_bytes(100);
    snapshot.set_kv_block_bytes(10 + rank_);
    memory_.Fill(&snapshot);
    return snapshot;
  }

  // As Called, but a finished operation is answered from the record, as in worker/operation_log.h.
  template <typename Request, typename Response>
  grpc::Status CalledOnce(const Request& request, Response* response, const std::string& call,
                          const std::function<void()>& work) {
    const std::pair<int64_t, uint64_t> operation(request.group_epoch(), request.operation_id());
    {
      absl::MutexLock lock(&mu_);
      if (const auto known = operations_.find(operation); known != operations_.end()) {
        response->ParseFromString(known->second.second);
        return LostOr(known->second.first);
      }
    }
    const grpc::Status status = Called(request.group_epoch(), call, work);
    absl::MutexLock lock(&mu_);
    operations_[operation] = {status, response->SerializeAsString()};
    return LostOr(status);
  }
  grpc::Status LostOr(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (num_lost_replies_ == 0) return status;
    --num_lost_replies_;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "Connection reset by peer");
  }

  // Runs calls one at a time, in the order of arrival, as on a worker's runner thread.
  grpc::Status Called(
      int64_t epoch, const std::string& call, const std::function<void()>& work = [] {}) {
    absl::MutexLock lock(&mu_);
    if (epoch != epoch_) return Refusal(epoch);
    calls_.push_back(call);
    const int64_t turn = num_turns_++;
    const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      const bool held = held_calls_.has_value() && (held_calls_->empty() || *held_calls_ == call);
      return dead_ || (!held && turn == turns_done_);
    };
    mu_.Await(absl::Condition(&ready));
    if (dead_) return grpc::Status::CANCELLED;  // before Shutdown cuts the connections, too
    ++turns_done_;
    absl::Status answer;
    if (!answers_.empty()) {
      answer = answers_.front();
      answers_.pop_front();
    }
    if (answer.ok()) work();
    return ToGrpcStatus(answer);
  }
  grpc::Status Refusal(int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ToGrpcStatus(absl::FailedPreconditionError(
        absl::StrCat("group_epoch: the request is of epoch ", epoch, ", this worker is in epoch ", epoch_)));
  }
  bool muted() const {
    absl::MutexLock lock(&mu_);
    return muted_;
  }
  void NoteMasks(const v1::StepMasks& masks) {
    absl::MutexLock lock(&mu_);
    mask_messages_.push_back(masks);
  }
  v1::StepReply Answer(const v1::StepRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::StatusOr<v1::StepReply> reply = worker_.Execute(request);
    if (request.group_epoch() != epoch_) reply = absl::FailedPreconditionError("another epoch");
    if (request.step_id() == failing_step_) reply = absl::InternalError("out of luck");
    if (reply.ok()) {
      reply->set_weights_version(weights_.version());
      if (muted_) reply->clear_tokens();
      return *std::move(reply);
    }
    v1::StepReply error;
    error.set_step_id(request.step_id());
    error.set_error_code(static_cast<int32_t>(reply.status().code()));
    error.set_error_message(std::string(reply.status().message()));
    return error;
  }

  std::string address_;
  mutable absl::Mutex mu_;
  FakeWorker worker_ ABSL_GUARDED_BY(mu_);
  FakeWeights weights_ ABSL_GUARDED_BY(mu_);
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  bool dead_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<std::string> held_calls_ ABSL_GUARDED_BY(mu_);  // empty: all
  int64_t num_turns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t turns_done_ ABSL_GUARDED_BY(mu_) = 0;
  FakeMemory memory_ ABSL_GUARDED_BY(mu_);
  int64_t failing_step_ ABSL_GUARDED_BY(mu_) = 0;
  bool muted_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<v1::StepMasks> mask_messages_ ABSL_GUARDED_BY(mu_);
  std::deque<absl::Status> answers_ ABSL_GUARDED_BY(mu_);
  absl::Status read_error_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mu_);
  int num_plans_ ABSL_GUARDED_BY(mu_) = 0;
  int num_lost_replies_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::pair<int64_t, uint64_t>, std::pair<grpc::Status, std::string>> operations_
      ABSL_GUARDED_BY(mu_);
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  std::string state_ ABSL_GUARDED_BY(mu_) = "created";
  int32_t rank_ ABSL_GUARDED_BY(mu_) = 0;
  int32_t world_size_ ABSL_GUARDED_BY(mu_) = 0;
  std::string options_digest_ ABSL_GUARDED_BY(mu_);
  v1::ParallelConfig parallel_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace somnus
