#include "tests/simulation/simulated_worker.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/build_id.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "tests/simulation/simulated_device.h"
#include "tests/worker/fake_parts.h"
#include "worker/coordinator_link.h"
#include "worker/model/shards.h"
#include "worker/runner/batch_state.h"
#include "worker/worker.h"
#include "worker/worker_service.h"

namespace somnus::simulation {
namespace {

constexpr int64_t kRegionBytes = FakeVmmDriver::kUnit;
constexpr absl::Duration kExitPatience = absl::Seconds(2);
constexpr int64_t kSpilledBytes =
    Disk::kPageBytes + kRegionBytes;  // of weights whose backup is a file: two pages
constexpr int64_t kWeightBytes = 2;   // all have the letter of the weights; fewer: a replacement is under way
constexpr int kSlowness = 5;          // how many times longer a slow stage computes

// In front of the hidden states that a stage sends to the next stage.
struct StreamHeader {
  int64_t epoch = 0;
  int64_t step_id = 0;
  int64_t stage = 0;  // the sender
};

// The files at a path, whose end names the weights (Site::weights).
class SimulatedCheckpoint : public FakeCheckpoint {
 public:
  explicit SimulatedCheckpoint(const std::string& path) : weights_(path.back()) {}
  char weights() const { return weights_; }

 private:
  const char weights_;
};

// Memory in which every change takes a moment.
class SimulatedMemory : public FakeVmmDriver {
 public:
  explicit SimulatedMemory(int pid) : pid_(pid) {
    Site& site = Site::current();
    site.workers[pid].memory = this;
    OnCall([&site] {
      site.world.Sleep(site.world.random().Between(absl::Microseconds(1), absl::Milliseconds(1)));
    });
  }
  ~SimulatedMemory() override {
    Site& site = Site::current();
    site.workers[pid_].memory = nullptr;
    if (!violations().empty()) site.world.Violate(absl::StrCat("memory: ", violations().front()));
    if (live_bytes() + host_bytes() + reserved_bytes() > 0 && !failed())
      site.world.Violate(absl::StrCat("a worker leaves ", live_bytes(), " bytes of device memory and ",
                                      host_bytes(), " of backups behind"));
  }

  absl::StatusOr<void*> Reserve(int64_t bytes) override {
    absl::StatusOr<void*> range = FakeVmmDriver::Reserve(bytes);
    if (range.ok() && self().allocates_device_memory) device_ranges_[*range] = bytes;
    return range;
  }
  absl::Status FreeAddress(void* address, int64_t bytes) override {
    RETURN_IF_ERROR(FakeVmmDriver::FreeAddress(address, bytes));
    device_ranges_.erase(address);
    return absl::OkStatus();
  }
  absl::Status Map(void* address, int64_t bytes, Handle handle) override {
    if (IsOnDevice(address)) CheckNothingComputes();
    RETURN_IF_ERROR(FakeVmmDriver::Map(address, bytes, handle));
    if (!IsOnDevice(address)) return absl::OkStatus();
    device_memory_[handle] = bytes;
    self().device_bytes += bytes;
    if (const auto& look = Site::current().on_device_memory) look();
    return absl::OkStatus();
  }
  absl::Status Release(Handle handle) override {
    RETURN_IF_ERROR(FakeVmmDriver::Release(handle));
    const auto memory = device_memory_.extract(handle);
    if (memory.empty()) return absl::OkStatus();
    CheckNothingComputes();
    self().device_bytes -= memory.mapped();
    return absl::OkStatus();
  }

  absl::Status CopyFromHost(void* device, const void* host, int64_t bytes) override {
    // Weights that came while the KV cache slept have no fingerprint before all memory is there.
    if (self().has_fingerprint && std::exchange(self().damage_backup, false))
      *static_cast<char*>(const_cast<void*>(host)) = '#';
    return FakeVmmDriver::CopyFromHost(device, host, bytes);
  }

 private:
  WorkerProcess& self() { return Site::current().workers[pid_]; }
  // A worker that leaves gives memory back while other ranks may compute.
  void CheckNothingComputes() {
    if (self().worker == nullptr) return;
    Site& site = Site::current();
    site.world.LookAround(
        [&] { site.steps.CheckNone(self().group, self().worker->group_epoch(), site.world.name(pid_)); });
  }
  bool IsOnDevice(void* address) const {
    const auto after = device_ranges_.upper_bound(address);
    if (after == device_ranges_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return static_cast<char*>(address) < static_cast<char*>(begin) + bytes;
  }

  const int pid_;
  // Blocks that a worker on CPUs keeps in host memory are memory of this driver, too, and have other ranges.
  std::map<void*, int64_t> device_ranges_;   // bytes, by the first address
  std::map<Handle, int64_t> device_memory_;  // bytes, once mapped in a range
};

// Memory that is allocated as long as this lives is the device's.
class DeviceAllocation {
 public:
  explicit DeviceAllocation(WorkerProcess* process) : process_(*process) {
    process_.allocates_device_memory = true;
  }
  DeviceAllocation(const DeviceAllocation&) = delete;
  ~DeviceAllocation() { process_.allocates_device_memory = false; }

 private:
  WorkerProcess& process_;
};

class SimulatedRunner : public ModelRunner {
 public:
  SimulatedRunner(Site* site, int pid, const ModelRunnerOptions& options, Communicator* communicator,
                  SleepableAllocator* allocator)
      : site_(*site),
        world_(site->world),
        self_(site->workers[pid]),
        communicator_(*communicator),
        allocator_(*allocator),
        place_(options.pipeline),
        num_layers_(StageLayers(options.pipeline, site->num_layers).size()),
        model_(site->model),
        batch_({.max_num_seqs = options.max_num_seqs,
                .max_num_batched_tokens = options.max_num_batched_tokens,
                .max_model_len = options.max_model_len,
                .block_size = options.block_size,
                .vocab_size = site->model.vocab_size,
                .num_blocks = 0,
                .max_proposals = options.num_speculative_tokens,
                .attention_reach = site->model.window}) {
    self_.stage = place_.stage;
  }
  ~SimulatedRunner() override {
    for (void* data : {weights_, workspace_, kv_cache_})
      if (data != nullptr) allocator_.Free(data).IgnoreError();
  }

  absl::Status Load(const Checkpoint& checkpoint, bool reads, const Progress& progress) {
    {
      const DeviceAllocation allocation(&self_);
      ASSIGN_OR_RETURN(weights_, allocator_.Allocate(kWeightsTag, WeightBytesOf(site_)));
      ASSIGN_OR_RETURN(workspace_, allocator_.Allocate("workspace", kWorkspaceBytes));
    }
    read_touches_ = site_.touches;
    if (reads) ReadWeights(checkpoint, progress);
    return absl::OkStatus();
  }

  std::string weight_types() const override { return "f32"; }
  int64_t kv_block_bytes() const override { return num_layers_ * kRegionBytes; }
  absl::Status Profile() override { return absl::OkStatus(); }
  absl::StatusOr<GraphReport> ProfileGraphs() override { return GraphReport(); }
  absl::Status AllocateKvCache(int32_t num_blocks, int32_t num_mapped_blocks, bool) override {
    const DeviceAllocation allocation(&self_);
    ASSIGN_OR_RETURN(kv_cache_, allocator_.AllocateRows("kv_cache", num_blocks * kRegionBytes, num_layers_,
                                                        num_mapped_blocks * kRegionBytes));
    batch_.SetNumBlocks(num_mapped_blocks);
    RETURN_IF_ERROR(model_.Resize(num_mapped_blocks));
    if (allocator_.Stats()["kv_cache"].sleeping == 0) Forget();  // otherwise ResetAfterWake forgets
    return absl::OkStatus();
  }
  absl::Status ResizeKvCache(int32_t num_mapped_blocks) override {
    RETURN_IF_ERROR(batch_.CheckUnused(num_mapped_blocks));
    RETURN_IF_ERROR(allocator_.Resize(kv_cache_, num_mapped_blocks * kRegionBytes));
    RETURN_IF_ERROR(model_.Resize(num_mapped_blocks));
    batch_.SetNumBlocks(num_mapped_blocks);
    return absl::OkStatus();
  }
  // Host blocks are known by address.
  absl::Status SwapBlocks(SwapDirection direction, const KvHostPool& pool,
                          absl::Span<const BlockSwap> swaps) override {
    if (direction == SwapDirection::kToDevice && !self_.memory->Holds(kv_cache_, 1, 'k')) Forget();
    for (const BlockSwap& swap : swaps) {
      std::vector<uint64_t>& pooled = host_blocks_[static_cast<char*>(pool.data) + swap.host_block];
      if (direction == SwapDirection::kToHost) {
        pooled = model_.Block(swap.device_block);
      } else {
        model_.SetBlock(swap.device_block, pooled);
      }
    }
    return absl::OkStatus();
  }
  absl::Status BeginEpoch() override {
    error_ = absl::OkStatus();
    begun_epoch_ = self_.worker->group_epoch();
    model_.DropBatch();
    batch_.Clear();
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<PendingStep>> Launch(const v1::StepRequest& request) override {
    RETURN_IF_ERROR(error_);
    CheckMemory(request);
    site_.steps.Begin(self_.group, request.group_epoch(), number());
    const absl::Duration time = world_.random().Between(absl::Microseconds(200), absl::Milliseconds(4));
    world_.Sleep(place_.stage == site_.slow_stage ? kSlowness * time : time);
    if (self_.step_hang > absl::ZeroDuration())
      world_.Sleep(std::exchange(self_.step_hang, absl::ZeroDuration()));
    absl::StatusOr<v1::StepReply> reply = Compute(request);
    if (!reply.ok()) return error_ = reply.status();
    site_.steps.End(self_.group, request.group_epoch(), number());
    return std::make_unique<FinishedStep>(std::move(reply));
  }
  // The fingerprint is of all stages' weights, as the logits are.
  absl::StatusOr<uint64_t> SelfCheck() override {
    RETURN_IF_ERROR(error_);
    if (!batch_.empty()) return absl::FailedPreconditionError("a sequence has a slot");
    world_.Sleep(world_.random().Between(absl::Microseconds(200), absl::Milliseconds(4)));
    absl::StatusOr<uint64_t> fingerprint = Fingerprint();
    if (!fingerprint.ok()) error_ = fingerprint.status();
    return fingerprint;
  }
  absl::Status CheckReload(const Checkpoint&) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginWeightUpdate(bool needs_all) override {
    allocator_.DropBackups(kWeightsTag);
    num_placed_ = 0;
    return std::make_unique<UpdatedTensors>(
        FakeConfig(), needs_all,
        [this](const Checkpoint& tensors, const TensorInfo& tensor) { return Place(tensors, tensor); });
  }
  absl::Status ReloadWeights(const Checkpoint& checkpoint, const Progress& progress) override {
    allocator_.DropBackups(kWeightsTag);
    const bool is_backup = self_.worker->GetStatus().file_bytes_by_tag().at(kWeightsTag) > 0;
    const bool lost = is_backup && site_.touches != read_touches_;
    ReadWeights(checkpoint, progress);
    if (lost) self_.memory->Fill(weights_, kWeightBytes, '#');
    return absl::OkStatus();
  }
  absl::Status ResetAfterWake() override {
    if (model_.num_slots_in_use() > 0) world_.Violate("slots are in use at a wake-up");
    if (!self_.memory->Holds(kv_cache_, 1, 'k')) Forget();
    return absl::OkStatus();
  }

 private:
  void ReadWeights(const Checkpoint& checkpoint, const Progress& progress) {
    const char weights = static_cast<const SimulatedCheckpoint&>(checkpoint).weights();
    read_touches_ = site_.touches;
    self_.memory->Fill(weights_, 1, weights);
    self_.has_fingerprint = false;
    const absl::Duration time = world_.random().Between(absl::Milliseconds(1), absl::Milliseconds(300)) +
                                std::exchange(self_.load_delay, absl::ZeroDuration());
    for (int part = 1; part <= 4; ++part) {
      world_.Sleep(time / 4);
      progress(part * kRegionBytes / 4, kRegionBytes);
    }
    self_.memory->Fill(weights_, kWeightBytes, weights);
  }
  // One tensor of an update, whose numbers are the letter; with the last tensor the weights are whole.
  absl::Status Place(const Checkpoint& tensors, const TensorInfo& tensor) {
    world_.Sleep(world_.random().Between(absl::Microseconds(10), absl::Milliseconds(5)));
    float number = 0;
    RETURN_IF_ERROR(tensors.ReadRows(tensor, 0, 1, 0, 1, &number));
    const bool whole = ++num_placed_ == tensors.Tensors().size();
    self_.has_fingerprint = false;
    self_.memory->Fill(weights_, whole ? kWeightBytes : 1, static_cast<char>(number));
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Fingerprint() {
    uint64_t fingerprint = 0;
    self_.has_fingerprint = true;
    if (!place_.first())
      RETURN_IF_ERROR(communicator_.ReceiveFromPreviousStage(&fingerprint, sizeof(fingerprint)));
    const char own = Weights();
    std::string all(communicator_.world_size(), 0);
    RETURN_IF_ERROR(communicator_.AllGather(&own, 1, all.data()));
    for (const char weights : all) fingerprint = 31 * fingerprint + static_cast<uint64_t>(weights);
    if (!place_.last()) RETURN_IF_ERROR(communicator_.SendToNextStage(&fingerprint, sizeof(fingerprint)));
    return samples() ? fingerprint : 0;
  }
  // The letter in the memory of weights; 0: no whole weights.
  char Weights() {
    for (char weights = 'a'; weights <= 'z'; ++weights)
      if (self_.memory->Holds(weights_, kWeightBytes, weights)) return weights;
    return 0;
  }
  // The contents of the cache are lost.
  void Forget() {
    model_.Replace();
    batch_.Clear();
    self_.memory->Fill(kv_cache_, 1, 'k');
  }
  void CheckMemory(const v1::StepRequest& request) {
    if (request.group_epoch() < begun_epoch_)
      world_.Violate(
          absl::StrCat("a step of epoch ", request.group_epoch(), " runs in epoch ", begun_epoch_));
    if (Weights() == 0) world_.Violate("a step runs without weights");
    if (!self_.memory->Holds(kv_cache_, 1, 'k')) world_.Violate("a step runs without a KV cache");
  }
  // The worker's own host tier has done the swaps (SwapBlocks).
  static v1::StepRequest WithoutSwaps(v1::StepRequest request) {
    request.clear_swap_outs();
    request.clear_swap_ins();
    return request;
  }
  // A step message breaks the rules, as no message of a good coordinator does.
  absl::Status Broken(const absl::Status& status) {
    world_.Violate(absl::StrCat("a step breaks the rules: ", status.message()));
    return status;
  }
  absl::Status CheckMessage(const v1::StepRequest& request) {
    RETURN_IF_ERROR(batch_.Branch(request));
    RETURN_IF_ERROR(batch_.Free(request));
    RETURN_IF_ERROR(batch_.Add(request));
    RETURN_IF_ERROR(batch_.Schedule(request));
    for (const ScheduledSlot& slot : batch_.scheduled()) {
      if (slot.samples && slot.num_drafts == 0) batch_.AppendToken(slot.slot, 0);  // nothing reads the value
    }
    return absl::OkStatus();
  }
  absl::StatusOr<v1::StepReply> Compute(const v1::StepRequest& request) {
    RETURN_IF_ERROR(std::exchange(self_.step_error, absl::OkStatus()));
    if (absl::Status status = CheckMessage(request); !status.ok()) return Broken(status);
    model_.SetWeights(static_cast<uint64_t>(Weights()));
    ASSIGN_OR_RETURN(FakeStream received, ReceiveStream(request));
    FakeStream stream;
    absl::StatusOr<v1::StepReply> reply =
        model_.ExecuteStage(WithoutSwaps(request), {.first = place_.first(), .last = place_.last()},
                            std::move(received), &stream);
    if (!reply.ok()) return Broken(reply.status());
    RETURN_IF_ERROR(Compare(request, &*reply, &stream));
    RETURN_IF_ERROR(SendStream(request, stream));
    if (samples()) return reply;
    v1::StepReply acknowledgement;
    acknowledgement.set_step_id(reply->step_id());
    return acknowledgement;
  }
  // Tokens of which the ranks of the stage have other results are changed, and so is all that the next stage
  // goes on from.
  absl::Status Compare(const v1::StepRequest& request, v1::StepReply* reply, FakeStream* stream) {
    const int world_size = communicator_.world_size();
    std::vector<int32_t> own{static_cast<int32_t>(request.group_epoch())};
    for (const v1::SampledToken& token : reply->tokens()) own.push_back(token.token_id());
    const size_t num_tokens = own.size() - 1;
    for (size_t i = 0; i < stream->size() && !place_.last(); ++i)
      own.push_back(static_cast<int32_t>((*stream)[i].state));
    std::vector<int32_t> all(own.size() * world_size);
    RETURN_IF_ERROR(communicator_.AllGather(own.data(), own.size() * sizeof(int32_t), all.data()));
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t place = i % own.size();
      if (all[i] == own[place]) continue;
      if (place == 0) {
        world_.Violate("two epochs compute together");
      } else if (place <= num_tokens) {
        v1::SampledToken* token = reply->mutable_tokens(static_cast<int>(place) - 1);
        token->set_token_id((token->token_id() + 1) % site_.model.vocab_size);
      } else {
        ++(*stream)[place - 1 - num_tokens].state;
      }
    }
    return absl::OkStatus();
  }
  // A step that schedules nothing sends nothing from stage to stage.
  absl::StatusOr<FakeStream> ReceiveStream(const v1::StepRequest& request) {
    FakeStream stream;
    if (place_.first() || batch_.num_scheduled_tokens() == 0) return stream;
    stream.resize(batch_.num_scheduled_tokens());
    const size_t bytes = stream.size() * sizeof(stream[0]);
    std::vector<char> message(sizeof(StreamHeader) + bytes);
    RETURN_IF_ERROR(
        communicator_.ReceiveFromPreviousStage(message.data(), static_cast<int64_t>(message.size())));
    StreamHeader header;
    std::memcpy(&header, message.data(), sizeof(header));
    std::memcpy(stream.data(), message.data() + sizeof(header), bytes);
    if (header.epoch != request.group_epoch() || header.step_id != request.step_id() ||
        header.stage != place_.stage - 1) {
      world_.Violate(absl::StrCat("stage ", place_.stage, " computes step ", request.step_id(), " of epoch ",
                                  request.group_epoch(), " with the stream of stage ", header.stage,
                                  " for step ", header.step_id, " of epoch ", header.epoch));
    }
    return stream;
  }
  absl::Status SendStream(const v1::StepRequest& request, const FakeStream& stream) {
    if (place_.last() || stream.empty()) return absl::OkStatus();
    const StreamHeader header = {request.group_epoch(), request.step_id(), place_.stage};
    const size_t bytes = stream.size() * sizeof(stream[0]);
    std::vector<char> message(sizeof(header) + bytes);
    std::memcpy(message.data(), &header, sizeof(header));
    std::memcpy(message.data() + sizeof(header), stream.data(), bytes);
    return communicator_.SendToNextStage(message.data(), static_cast<int64_t>(message.size()));
  }
  // Rank 0 of the last stage replies with tokens.
  bool samples() const { return communicator_.rank() == 0 && place_.last(); }
  // The rank among all stages.
  int number() const { return place_.stage * communicator_.world_size() + communicator_.rank(); }

  Site& site_;
  World& world_;
  WorkerProcess& self_;
  Communicator& communicator_;
  SleepableAllocator& allocator_;
  const PipelinePlace place_;
  const int64_t num_layers_;  // of the stage
  FakeWorker model_;
  std::map<char*, std::vector<uint64_t>> host_blocks_;
  BatchState batch_;
  absl::Status error_;
  int64_t begun_epoch_ = 0;
  size_t num_placed_ = 0;     // tensors of the update under way
  int64_t read_touches_ = 0;  // Site::touches when a checkpoint was read
  void *weights_ = nullptr, *workspace_ = nullptr, *kv_cache_ = nullptr;
};

WorkerParts MakeParts(Site* site, int pid) {
  WorkerParts parts;
  parts.open_device = [](const WorkerOptions&,
                         const CpuDeviceOptions&) -> absl::StatusOr<std::unique_ptr<Device>> {
    return std::make_unique<SimulatedDevice>();
  };
  parts.open_memory = [pid](const WorkerOptions&, int) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
    return std::make_unique<SimulatedMemory>(pid);
  };
  parts.open_checkpoint = [](const std::string& path,
                             LoadFormat) -> absl::StatusOr<std::unique_ptr<Checkpoint>> {
    return std::make_unique<SimulatedCheckpoint>(path);
  };
  parts.fingerprint = [](const std::string& path, LoadFormat) -> absl::StatusOr<std::string> {
    return FilesOf(path);
  };
  parts.stamp = [site](const std::string& path, LoadFormat) -> absl::StatusOr<CheckpointStamp> {
    return CheckpointStamp{{{.name = path, .modified_ns = site->touches}}};
  };
  parts.load_runner =
      [site, pid](const Checkpoint& checkpoint, const ModelRunnerOptions& options, Device*,
                  Communicator* communicator, SleepableAllocator* allocator,
                  const ModelRunner::Progress& progress) -> absl::StatusOr<std::unique_ptr<ModelRunner>> {
    auto runner = std::make_unique<SimulatedRunner>(site, pid, options, communicator, allocator);
    RETURN_IF_ERROR(runner->Load(checkpoint, options.read_weights, progress));
    return runner;
  };
  return parts;
}

v1::RegisterRequest MakeRegisterRequest(const Site& site, int pid, const std::string& address) {
  v1::RegisterRequest request;
  request.set_worker_id(site.world.name(pid));
  request.set_host("host");
  request.set_pid(pid);
  request.set_address(address);
  request.set_device_type(v1::DEVICE_TYPE_CPU);
  request.set_preferred_rank(site.workers.at(pid).rank);
  request.set_version(kVersion);
  request.set_build_id(BuildId());
  return request;
}

}  // namespace

int64_t WeightBytesOf(const Site& site) { return site.spills ? kSpilledBytes : kRegionBytes; }

void RunWorker(Site* site, int pid, const std::string& coordinator, const std::string& address) {
  World& world = site->world;
  WorkerProcess& self = site->workers[pid];
  world.Sleep(world.random().Between(absl::Milliseconds(1), absl::Milliseconds(100)));  // from fork to main
  StopSignal leave;
  const auto say_leave = [&leave] { leave.Stop(); };
  self.leave = say_leave;
  // Until the registration nobody but the parent knows of the worker.
  const auto watches_parent = std::make_shared<bool>(self.local);
  if (self.local) {
    world.OnEnd(self.parent, [&world, &self, pid, watches_parent] {
      if (*watches_parent && world.alive(pid)) self.leave();
    });
  }
  std::string reason = "exited with code 0";
  {
    Worker worker(WorkerOptions{}, MakeParts(site, pid));
    self.worker = &worker;
    const auto service = MakeWorkerService(&worker, say_leave);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, nullptr);
    builder.RegisterService(service.get());
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    CoordinatorLinkOptions options{.coordinator = coordinator};
    const std::unique_ptr<CoordinatorLink> link = CoordinatorLink::Create(options);
    std::thread registration([&] {
      if (absl::Status status = link->Register(MakeRegisterRequest(*site, pid, address)); !status.ok()) {
        world.Log(absl::StrCat("not registered: ", status.message()));
        leave.Stop();
        return;
      }
      if (site->has_run_dir) *watches_parent = false;
      link->StartHeartbeats(
          [&worker](v1::HeartbeatRequest* beat) {
            beat->set_last_step_id(worker.last_step_id());
            beat->set_step_in_progress(worker.step_in_progress());
            beat->set_group_epoch(worker.group_epoch());
          },
          [&worker](v1::RegisterRequest* request) { *request->mutable_snapshot() = worker.Snapshot(); },
          [&](const absl::Status&) { leave.Stop(); });
    });
    leave.WaitFor(absl::InfiniteDuration());
    link->Stop();
    registration.join();
    worker.Abort("rank leaves");
    const bool idle = worker.WaitIdle(kExitPatience);
    server->Shutdown(absl::ToChronoTime(absl::Now() + absl::Milliseconds(idle ? 200 : 0)));
    if (!idle) world.Kill(pid, "exited with its device busy");
    self.worker = nullptr;
  }
  if (site->disk.HasFiles(pid)) world.Violate("a worker leaves a spill file open");
  world.Kill(pid, reason);
}

}  // namespace somnus::simulation
