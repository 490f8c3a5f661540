// The worker as a process, with a coordinator that the test plays: the worker registers, and leaves for every
// reason there is.

#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <set>

#include "base/version.h"
#include "tests/fakes/notify_listener.h"
#include "tests/worker/worker_processes.h"

namespace somnus {
namespace {

TEST(WorkerProcess, RegistersAnswersAndLeavesOnShutdown) {
  FakeCoordinator coordinator;
  Process process({"--coordinator=" + coordinator.address(), "--rank=3", "--threads=1"});
  const v1::RegisterRequest worker = coordinator.WaitForWorker(0);
  EXPECT_EQ(worker.pid(), process.pid());
  EXPECT_EQ(worker.preferred_rank(), 3);
  EXPECT_EQ(worker.version(), kVersion);
  EXPECT_EQ(worker.device_type(), v1::DEVICE_TYPE_CPU);
  EXPECT_GT(worker.device_memory_bytes(), 0);
  const std::string socket = worker.address().substr(5);
  EXPECT_TRUE(std::filesystem::exists(socket));
  auto stub = Dial(worker);
  EXPECT_FALSE(worker.build_id().empty());
  grpc::ClientContext fence_context, status_context, shutdown_context;
  v1::FenceRequest fence;
  fence.set_group_epoch(7);
  v1::FenceResponse fenced;
  ASSERT_TRUE(stub->Fence(&fence_context, fence, &fenced).ok());
  EXPECT_EQ(fenced.snapshot().build_id(), worker.build_id());
  v1::WorkerStatusRequest status_request;
  status_request.set_group_epoch(7);
  v1::WorkerStatusResponse status;
  ASSERT_TRUE(stub->GetStatus(&status_context, status_request, &status).ok());
  EXPECT_EQ(status.state(), "created");
  v1::WorkerShutdownResponse response;
  v1::WorkerShutdownRequest shutdown;
  shutdown.set_group_epoch(7);
  EXPECT_TRUE(stub->Shutdown(&shutdown_context, shutdown, &response).ok());
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(socket));
}

TEST(WorkerProcess, ObeysOnlyWhoKnowsTheSecret) {
  ClusterTrustOptions options{.secret = std::string(kMinSecretBytes, 's')};
  const ClusterTrust trust = ClusterTrust::Create(options).value();
  FakeCoordinator coordinator(trust);
  ASSERT_EQ(setenv(kClusterSecretVariable, options.secret.c_str(), 1), 0);
  Process local({"--coordinator=" + coordinator.address()});
  const v1::RegisterRequest at_socket = coordinator.WaitForWorker(0);
  Process remote({"--coordinator=" + coordinator.address(), "--listen=127.0.0.1:0"});
  const v1::RegisterRequest at_port = coordinator.WaitForWorker(1);
  ASSERT_EQ(unsetenv(kClusterSecretVariable), 0);
  v1::FenceRequest fence;
  fence.set_group_epoch(7);
  for (const v1::RegisterRequest& worker : {at_socket, at_port}) {
    grpc::ClientContext stranger_context, context;
    v1::FenceResponse fenced;
    EXPECT_FALSE(Dial(worker)->Fence(&stranger_context, fence, &fenced).ok()) << worker.address();
    EXPECT_TRUE(Dial(worker, trust)->Fence(&context, fence, &fenced).ok()) << worker.address();
  }
  struct stat info = {};
  ASSERT_EQ(stat(at_socket.address().substr(5).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u) << "another user could connect";
}

TEST(WorkerProcess, BeyondLoopbackItStartsOnlyWhereItCanTellStrangers) {
  FakeCoordinator coordinator;
  Process careless({"--coordinator=" + coordinator.address(), "--listen=0.0.0.0:0"});
  EXPECT_EQ(careless.Wait(), 1);
  Process insecure({"--coordinator=" + coordinator.address(), "--listen=0.0.0.0:0", "--insecure-cluster"});
  EXPECT_EQ(coordinator.WaitForWorker(0).pid(), insecure.pid());
}

TEST(WorkerProcess, LeavesWhenTheCoordinatorForgetsIt) {
  FakeCoordinator coordinator;
  Process process({"--coordinator=" + coordinator.address()});
  coordinator.WaitForWorker(0);
  coordinator.refuse = true;
  coordinator.known = false;
  EXPECT_EQ(process.Wait(), 1);
}

TEST(WorkerProcess, RegistersAgainWhereItIsNotKnown) {
  FakeCoordinator coordinator;
  Process process({"--coordinator=" + coordinator.address(), "--rank=1"});
  const v1::RegisterRequest first = coordinator.WaitForWorker(0);
  EXPECT_FALSE(first.has_snapshot());
  coordinator.known = false;
  const v1::RegisterRequest again = coordinator.WaitForWorker(1);
  EXPECT_EQ(again.worker_id(), first.worker_id());
  EXPECT_EQ(again.preferred_rank(), 1);
  EXPECT_EQ(again.snapshot().state(), "created");
}

TEST(WorkerProcess, OutlivesAShortAbsenceOfTheCoordinatorButNotALongOne) {
  FakeCoordinator coordinator;
  Process process({"--coordinator=" + coordinator.address(), "--worker_grace=4s"});
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
  Process process({"--coordinator=" + coordinator.address(), "--spawned-by=" + std::to_string(getpid()),
                   "--term_grace=1000s"});
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
  v1::FenceRequest fence;
  fence.set_group_epoch(1);
  v1::FenceResponse fenced;
  EXPECT_TRUE(stub->Fence(&context, fence, &fenced).ok());
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

// Starts a worker as the child of a process that is killed once the worker has registered; returns the
// worker's pid.
pid_t StartAndOrphan(FakeCoordinator* coordinator, const std::vector<std::string>& flags) {
  EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // the test sees the orphan's end
  std::vector<std::string> args = {"worker/worker", "--coordinator=" + coordinator->address()};
  args.insert(args.end(), flags.begin(), flags.end());
  const pid_t parent = fork();
  EXPECT_GE(parent, 0);
  if (parent == 0) {
    args.push_back("--spawned-by=" + std::to_string(getpid()));
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    if (fork() == 0) {
      execv(argv[0], argv.data());
      _exit(127);
    }
    pause();
  }
  const pid_t worker = coordinator->WaitForWorker(0).pid();
  for (int i = 0; i < 4000 && coordinator->beats() == 0; ++i) absl::SleepFor(absl::Milliseconds(5));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  return worker;
}

TEST(WorkerProcess, SpawnedWorkerLeavesWithItsParent) {
  FakeCoordinator coordinator;
  const pid_t worker = StartAndOrphan(&coordinator, {});
  ASSERT_GT(worker, 0);
  int status = -1;
  for (int i = 0; i < 4000 && waitpid(worker, &status, WNOHANG) != worker; ++i)
    absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(WorkerProcess, SpawnedWorkerWhoseParentIsGoneBeforeItLooksLeaves) {
  FakeCoordinator coordinator;
  coordinator.Stop();  // a worker that does not leave would wait here for --register-timeout
  constexpr char kNobody[] = "--spawned-by=4194304";  // above every process id
  Process process({"--coordinator=" + coordinator.address(), kNobody, "--worker-grace=1h"});
  EXPECT_EQ(process.Wait(), 1);
}

TEST(WorkerProcess, SpawnedWorkerWithAGraceOutlivesItsParent) {
  FakeCoordinator coordinator;
  const pid_t worker = StartAndOrphan(&coordinator, {"--worker-grace=1s"});
  ASSERT_GT(worker, 0);
  const int beats = coordinator.beats();
  for (int i = 0; i < 4000 && coordinator.beats() < beats + 5; ++i) absl::SleepFor(absl::Milliseconds(5));
  int status = -1;
  EXPECT_EQ(waitpid(worker, &status, WNOHANG), 0) << "it serves whoever is at its coordinator's address";
  coordinator.Stop();
  for (int i = 0; i < 4000 && waitpid(worker, &status, WNOHANG) != worker; ++i)
    absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(WorkerProcess, FindsItsPlaceInTheEnvironmentUnlessFlagsSayIt) {
  FakeCoordinator coordinator;
  setenv("SOMNUS_COORDINATOR", coordinator.address().c_str(), 1);
  setenv("SOMNUS_RANK", "2", 1);
  Process by_environment({"--threads=1"}), by_flag({"--threads=1", "--rank=5"});
  std::set<int> ranks = {coordinator.WaitForWorker(0).preferred_rank(),
                         coordinator.WaitForWorker(1).preferred_rank()};
  EXPECT_EQ(ranks, (std::set<int>{2, 5}));
  setenv("SOMNUS_RANK", "second", 1);
  EXPECT_EQ(Process({"--threads=1"}).Wait(), 2);
  // A worker that the coordinator started was told everything.
  Process spawned({"--coordinator=" + coordinator.address(), "--spawned-by=" + std::to_string(getpid())});
  EXPECT_FALSE(coordinator.WaitForWorker(2).has_preferred_rank());
  unsetenv("SOMNUS_RANK");
  unsetenv("SOMNUS_COORDINATOR");
}

TEST(WorkerProcess, TellsItsServiceManager) {
  FakeCoordinator coordinator;
  NotifyListener manager(AbstractNotifyName());
  setenv("NOTIFY_SOCKET", AbstractNotifyName().c_str(), 1);
  setenv("WATCHDOG_USEC", "30000", 1);
  Process process({"--coordinator=" + coordinator.address(), "--threads=1"});
  unsetenv("WATCHDOG_USEC");
  unsetenv("NOTIFY_SOCKET");
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=registered at " + coordinator.address() + "\n");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(manager.Next(), "WATCHDOG=1\n");
  coordinator.refuse = true;
  coordinator.known = false;
  std::string last = manager.Next();
  while (last == "WATCHDOG=1\n") last = manager.Next();
  EXPECT_EQ(last, "STOPPING=1\n");
  EXPECT_EQ(process.Wait(), 1);
}

TEST(WorkerProcess, BadCommandLinesEndAtOnce) {
  EXPECT_EQ(Process({}).Wait(), 2);
  // No machine has a GPU of that index.
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

}  // namespace
}  // namespace somnus
