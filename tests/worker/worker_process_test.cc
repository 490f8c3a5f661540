// The worker as a process, with a coordinator that the test plays: it comes, serves a real (tiny) model over
// two ranks, and leaves for every reason there is.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/version.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/worker.grpc.pb.h"

namespace somnus {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(40);
constexpr int kStillRunning = -1;

class FakeCoordinator : public v1::ClusterService::Service {
 public:
  FakeCoordinator() {
    std::string path = "/tmp/somnus-test-XXXXXX";
    directory_ = mkdtemp(path.data());
    Start();
  }
  ~FakeCoordinator() override {
    Stop();
    std::filesystem::remove_all(directory_);
  }

  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::string address() const { return absl::StrCat("unix:", directory_, "/coordinator.sock"); }
  const std::string& directory() const { return directory_; }

  v1::RegisterRequest WaitForWorker(size_t index) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() { return workers_.size() > index; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), kPatience));
    return workers_.size() > index ? workers_[index] : v1::RegisterRequest();
  }
  int beats() const { return beats_; }
  std::atomic<bool> known{true};
  std::atomic<bool> refuse{false};

 private:
  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    if (refuse) return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "not you");
    response->set_heartbeat_interval_ms(50);
    absl::MutexLock lock(&mu_);
    workers_.push_back(*request);
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*,
                         v1::HeartbeatResponse* response) override {
    ++beats_;
    response->set_known(known);
    return grpc::Status::OK;
  }

  std::string directory_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mu_;
  std::vector<v1::RegisterRequest> workers_;
  std::atomic<int> beats_{0};
};

class Process {
 public:
  explicit Process(std::vector<std::string> args) {
    args.insert(args.begin(), "worker/worker");
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  // Not to one that has been waited for: -1 would be everybody.
  void Signal(int signal) {
    ASSERT_GT(pid_, 0) << "the process has ended";
    kill(pid_, signal);
  }
  // The exit code, or kStillRunning after `timeout`.
  int Wait(absl::Duration timeout = kPatience) {
    const absl::Time deadline = absl::Now() + timeout;
    do {
      int status;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      absl::SleepFor(absl::Milliseconds(5));
    } while (absl::Now() < deadline);
    return kStillRunning;
  }

 private:
  pid_t pid_;
};

std::unique_ptr<v1::WorkerService::Stub> Dial(const v1::RegisterRequest& worker) {
  return v1::WorkerService::NewStub(
      grpc::CreateChannel(worker.address(), grpc::InsecureChannelCredentials()));
}

TEST(WorkerProcess, RegistersAnswersAndLeavesOnShutdown) {
  FakeCoordinator coordinator;
  Process process(
      {"--coordinator=" + coordinator.address(), "--rank=3", "--threads=1", "--spawn-token=secret"});
  const v1::RegisterRequest worker = coordinator.WaitForWorker(0);
  EXPECT_EQ(worker.pid(), process.pid());
  EXPECT_EQ(worker.preferred_rank(), 3);
  EXPECT_EQ(worker.version(), kVersion);
  EXPECT_EQ(worker.spawn_token(), "secret");
  EXPECT_EQ(worker.device_type(), v1::DEVICE_TYPE_CPU);
  EXPECT_GT(worker.device_memory_bytes(), 0);
  const std::string socket = worker.address().substr(5);
  EXPECT_TRUE(std::filesystem::exists(socket));
  auto stub = Dial(worker);
  grpc::ClientContext status_context, shutdown_context;
  v1::WorkerStatusResponse status;
  ASSERT_TRUE(stub->GetStatus(&status_context, {}, &status).ok());
  EXPECT_EQ(status.state(), "created");
  v1::WorkerShutdownResponse response;
  EXPECT_TRUE(stub->Shutdown(&shutdown_context, {}, &response).ok());
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(socket));
}

TEST(WorkerProcess, LeavesWhenTheCoordinatorForgetsIt) {
  FakeCoordinator coordinator;
  Process process({"--coordinator=" + coordinator.address()});
  coordinator.WaitForWorker(0);
  coordinator.known = false;
  EXPECT_EQ(process.Wait(), 0);
}

TEST(WorkerProcess, OutlivesAShortAbsenceOfTheCoordinatorButNotALongOne) {
  FakeCoordinator coordinator;
  Process process({"--coordinator=" + coordinator.address(), "--orphan_grace=4s"});
  coordinator.WaitForWorker(0);
  coordinator.Stop();
  EXPECT_EQ(process.Wait(absl::Seconds(1)), kStillRunning);
  const int beats = coordinator.beats();
  coordinator.Start();
  for (int i = 0; i < 4000 && coordinator.beats() == beats; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_GT(coordinator.beats(), beats);
  coordinator.Stop();
  EXPECT_EQ(process.Wait(), 1);
}

TEST(WorkerProcess, WaitsForALateCoordinator) {
  FakeCoordinator coordinator;
  coordinator.Stop();
  Process process({"--coordinator=" + coordinator.address()});
  EXPECT_EQ(process.Wait(absl::Milliseconds(300)), kStillRunning);
  coordinator.Start();
  EXPECT_EQ(coordinator.WaitForWorker(0).pid(), process.pid());
}

TEST(WorkerProcess, RefusalEndsIt) {
  FakeCoordinator coordinator;
  coordinator.refuse = true;
  Process process({"--coordinator=" + coordinator.address()});
  EXPECT_EQ(process.Wait(), 1);
}

TEST(WorkerProcess, SigtermEndsASpawnedWorkerAtOnce) {
  FakeCoordinator coordinator;
  Process process({"--coordinator=" + coordinator.address(), "--spawn_token=x", "--term_grace=1000s"});
  coordinator.WaitForWorker(0);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(WorkerProcess, SigtermLetsTheCoordinatorDrainFirst) {
  FakeCoordinator coordinator;
  Process process({"--coordinator=" + coordinator.address(), "--term-grace=1000"});
  const v1::RegisterRequest worker = coordinator.WaitForWorker(0);
  for (int i = 0; i < 4000 && coordinator.beats() == 0; ++i) absl::SleepFor(absl::Milliseconds(5));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(absl::Milliseconds(500)), kStillRunning);
  auto stub = Dial(worker);
  grpc::ClientContext context;
  v1::WorkerStatusResponse status;
  EXPECT_TRUE(stub->GetStatus(&context, {}, &status).ok());
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(WorkerProcess, SpawnedWorkerLeavesWithItsParent) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // the orphan becomes ours, so that its end can be seen
  FakeCoordinator coordinator;
  const std::string flag = "--coordinator=" + coordinator.address();
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    if (fork() == 0) {
      execl("worker/worker", "worker/worker", flag.c_str(), "--spawn_token=x", static_cast<char*>(nullptr));
      _exit(127);
    }
    pause();
  }
  const pid_t worker = coordinator.WaitForWorker(0).pid();
  ASSERT_GT(worker, 0);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  int status = -1;
  for (int i = 0; i < 4000 && waitpid(worker, &status, WNOHANG) != worker; ++i)
    absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(WorkerProcess, BadCommandLinesEndAtOnce) {
  EXPECT_EQ(Process({}).Wait(), 2);
  // With GPUs or without, there is no such one.
  EXPECT_EQ(Process({"--coordinator=unix:/x", "--device=cuda", "--device-index=1000"}).Wait(), 1);
  EXPECT_EQ(Process({"--coordinator=unix:/x", "--device=tpu"}).Wait(), 2);
  EXPECT_EQ(Process({"--coordinator=unix:/x", "--threads=1025"}).Wait(), 2);
  EXPECT_EQ(Process({"--coordinator=unix:/x", "--device-index=x"}).Wait(), 2);
  EXPECT_EQ(Process({"--coordinator=unix:/x", "--log-level=loud"}).Wait(), 2);
  EXPECT_EQ(Process({"--coordinator=unix:/x", "surplus"}).Wait(), 2);
  EXPECT_EQ(Process({"--coordinator=unix:/x", "--no-such-flag=1"}).Wait(), 2);
  EXPECT_EQ(Process({"--help"}).Wait(), 0);
  EXPECT_EQ(Process({"--version"}).Wait(), 0);
  EXPECT_EQ(Process({"--coordinator=no.port.here"}).Wait(), 1);
}

// Two ranks of a tiny model with uneven heads: both levels of sleep leave the tokens as they were.
class TwoRanks : public testing::Test {
 protected:
  TwoRanks() {
    const std::string flag = "--coordinator=" + coordinator_.address();
    for (int r = 0; r < 2; ++r) {
      processes_.push_back(std::make_unique<Process>(
          std::vector<std::string>{flag, "--threads=1", absl::StrCat("--rank=", r), "--log_level=warning"}));
    }
    stubs_.resize(2);
    for (int i = 0; i < 2; ++i) {
      const v1::RegisterRequest worker = coordinator_.WaitForWorker(i);
      stubs_[worker.preferred_rank()] = Dial(worker);
    }
  }

  // The same call to both ranks at once.
  template <typename Call>
  void Both(const Call& call) {
    grpc::Status statuses[2];
    std::thread other([&] { statuses[1] = call(1); });
    statuses[0] = call(0);
    other.join();
    for (int r = 0; r < 2; ++r)
      EXPECT_TRUE(statuses[r].ok()) << "rank " << r << ": " << statuses[r].error_message();
  }

  void Load() {
    v1::LoadModelRequest request;
    request.set_model_path(std::filesystem::absolute("tests/data/tiny/llama-uneven"));
    request.set_dtype(v1::DTYPE_FLOAT32);
    request.set_kv_cache_dtype(v1::DTYPE_FLOAT32);
    request.mutable_parallel()->set_world_size(2);
    request.mutable_parallel()->set_group_name(absl::StrCat("process-test-", absl::ToUnixNanos(absl::Now())));
    request.set_max_num_seqs(4);
    request.set_max_num_batched_tokens(64);
    request.set_max_model_len(64);
    request.set_block_size(16);
    Both([&](int r) {
      v1::LoadModelRequest mine = request;
      mine.mutable_parallel()->set_rank(r);
      grpc::ClientContext context;
      auto reader = stubs_[r]->LoadModel(&context, mine);
      v1::LoadModelEvent event;
      while (reader->Read(&event)) {
      }
      EXPECT_TRUE(event.done());
      EXPECT_GT(event.available_kv_cache_memory_bytes(), 0);
      return reader->Finish();
    });
    Both([&](int r) {
      grpc::ClientContext context;
      v1::AllocateKvCacheRequest kv;
      kv.mutable_kv_cache()->set_block_size(16);
      kv.mutable_kv_cache()->set_num_blocks(8);
      kv.mutable_kv_cache()->set_dtype(v1::DTYPE_FLOAT32);
      v1::AllocateKvCacheResponse response;
      return stubs_[r]->AllocateKvCache(&context, kv, &response);
    });
  }

  // A prompt and `steps` greedy tokens.
  std::vector<int> Generate(int steps) {
    std::vector<int> tokens;
    grpc::ClientContext contexts[2];
    std::unique_ptr<grpc::ClientReaderWriter<v1::StepRequest, v1::StepReply>> streams[2];
    for (int r = 0; r < 2; ++r) streams[r] = stubs_[r]->Execute(&contexts[r]);
    for (int i = 0; i < steps; ++i) {
      v1::StepRequest step;
      step.set_step_id(++last_step_);
      if (i == 0) {
        v1::NewSequence* sequence = step.add_new_sequences();
        for (const int token : {5, 17, 42, 9}) sequence->add_token_ids(token);
        sequence->set_num_prompt_tokens(4);
        for (const int block : {1, 2}) sequence->add_block_ids(block);
        sequence->mutable_sampling()->set_top_p(1);
        sequence->mutable_sampling()->set_repetition_penalty(1);
        sequence->mutable_sampling()->set_num_logprobs(-1);
        sequence->mutable_sampling()->set_num_prompt_logprobs(-1);
      }
      step.add_sequences()->set_num_tokens(i == 0 ? 4 : 1);
      for (auto& stream : streams) EXPECT_TRUE(stream->Write(step));
      for (int r = 0; r < 2; ++r) {
        v1::StepReply reply;
        EXPECT_TRUE(streams[r]->Read(&reply));
        EXPECT_EQ(reply.error_code(), 0) << reply.error_message();
        EXPECT_EQ(reply.tokens_size(), r == 0 ? 1 : 0);
        if (r == 0 && reply.tokens_size() == 1) tokens.push_back(reply.tokens(0).token_id());
      }
    }
    v1::StepRequest free_slot;
    free_slot.set_step_id(++last_step_);
    free_slot.add_freed_slots(0);
    for (auto& stream : streams) {
      v1::StepReply reply;
      EXPECT_TRUE(stream->Write(free_slot) && stream->Read(&reply));
      EXPECT_EQ(reply.error_code(), 0) << reply.error_message();
      stream->WritesDone();
      EXPECT_TRUE(stream->Finish().ok());
    }
    return tokens;
  }

  FakeCoordinator coordinator_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<v1::WorkerService::Stub>> stubs_;
  int64_t last_step_ = 0;
};

TEST_F(TwoRanks, SameTokensAfterEitherSleep) {
  Load();
  const std::vector<int> tokens = Generate(12);
  EXPECT_EQ(tokens.size(), 12u);
  for (const int level : {1, 2, 1}) {
    Both([&](int r) {
      grpc::ClientContext context;
      v1::WorkerSleepRequest request;
      request.set_level(level);
      v1::WorkerSleepResponse response;
      return stubs_[r]->Sleep(&context, request, &response);
    });
    Both([&](int r) {
      grpc::ClientContext context;
      v1::WorkerWakeUpResponse response;
      return stubs_[r]->WakeUp(&context, {}, &response);
    });
    EXPECT_EQ(Generate(12), tokens) << "after level " << level;
  }
}

TEST_F(TwoRanks, DeathOfARankFailsTheOthersStepSoon) {
  Load();
  processes_[1]->Signal(SIGKILL);
  EXPECT_EQ(processes_[1]->Wait(), 128 + SIGKILL);
  grpc::ClientContext context;
  auto stream = stubs_[0]->Execute(&context);
  v1::StepRequest step;
  step.set_step_id(1);
  v1::NewSequence* sequence = step.add_new_sequences();
  sequence->add_token_ids(5);
  sequence->set_num_prompt_tokens(1);
  sequence->add_block_ids(1);
  sequence->mutable_sampling()->set_top_p(1);
  sequence->mutable_sampling()->set_repetition_penalty(1);
  sequence->mutable_sampling()->set_num_logprobs(-1);
  sequence->mutable_sampling()->set_num_prompt_logprobs(-1);
  step.add_sequences()->set_num_tokens(1);
  ASSERT_TRUE(stream->Write(step));
  v1::StepReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.error_code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_NE(reply.error_message().find("rank 1"), std::string::npos) << reply.error_message();
}

}  // namespace
}  // namespace somnus
