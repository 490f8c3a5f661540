// Run directories: the permitted users, the lock, and the contents. Processes that are no children.

#include "base/run_dir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

class RunDirTest : public ::testing::Test {
 protected:
  std::string Refusal() { return std::string(RunDir::Open(path_).status().message()); }

  const TempDir temp_dir_;
  const std::string& parent_ = temp_dir_.path();
  std::string path_ = parent_ + "/run";
};

TEST_F(RunDirTest, ItIsMadePrivateAndLocked) {
  umask(0);
  const absl::StatusOr<RunDir> first = RunDir::Open(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ModeOf(path_), 0700u);
  EXPECT_EQ(first->socket_path(), path_ + "/coordinator.sock");
  EXPECT_EQ(Refusal(), absl::StrCat("--run-dir: another coordinator (pid ", getpid(), ") uses ", path_));
  EXPECT_EQ(RunDirHolder(path_).value(), ThisProcess());
}

TEST_F(RunDirTest, ItIsFreeOnceItsUserHasEnded) {
  { ASSERT_TRUE(RunDir::Open(path_).ok()); }
  EXPECT_EQ(RunDirHolder(path_).value(), std::nullopt);
  EXPECT_TRUE(RunDir::Open(path_).ok());
  EXPECT_TRUE(absl::IsNotFound(RunDirHolder(parent_ + "/none").status()));
  EXPECT_EQ(RunDirHolder(parent_).value(), std::nullopt);
}

TEST_F(RunDirTest, WhatOthersMayEnterIsRefused) {
  for (const mode_t mode : {0750, 0701, 0770, 0704}) {
    std::filesystem::remove_all(path_);
    ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_EQ(Refusal(),
              absl::StrCat("--run-dir: ", path_, " is open to other users; close it with: chmod 700"));
  }
  std::ofstream(parent_ + "/file") << "";
  path_ = parent_ + "/file";
  EXPECT_EQ(Refusal(), absl::StrCat("--run-dir: ", path_, " is no directory"));
  path_ = parent_ + "/missing/run";
  EXPECT_TRUE(absl::StartsWith(Refusal(), absl::StrCat("--run-dir: ", path_))) << Refusal();
  if (geteuid() == 0) return;
  path_ = "/";
  EXPECT_TRUE(absl::StrContains(Refusal(), "belongs to user 0")) << Refusal();
}

TEST_F(RunDirTest, EverySocketsPathFits) {
  path_ = parent_ + "/" + std::string(87 - parent_.size() - 1, 'a');
  EXPECT_TRUE(RunDir::Open(path_ + "/").ok()) << "a slash at the end does not count";
  path_ += "a";
  EXPECT_EQ(Refusal(), absl::StrCat("--run-dir: ", path_,
                                    " has more than 87 bytes: the paths of its sockets would be too long"));
}

TEST_F(RunDirTest, TheSecretIsKeptUntilClear) {
  const absl::StatusOr<RunDir> directory = RunDir::Open(path_);
  ASSERT_TRUE(directory.ok());
  EXPECT_EQ(directory->KeepSecret("one").value(), "one");
  EXPECT_EQ(directory->KeepSecret("two").value(), "one");
  EXPECT_EQ(ModeOf(path_ + "/secret"), 0600u);
  directory->Clear();
  EXPECT_EQ(directory->KeepSecret("two").value(), "two");
}

TEST_F(RunDirTest, SocketsOfTheDeadAreRemovedAndClearRemovesAll) {
  const absl::StatusOr<RunDir> directory = RunDir::Open(path_);
  ASSERT_TRUE(directory.ok());
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  const std::string of_dead = absl::StrCat(path_, "/worker-", dead, ".sock");
  const std::string of_live = absl::StrCat(path_, "/worker-", getpid(), ".sock");
  for (const std::string& file : {of_dead, of_live, path_ + "/coordinator.sock", path_ + "/group"})
    std::ofstream(file) << "";
  directory->RemoveDeadSockets();
  EXPECT_FALSE(std::filesystem::exists(of_dead));
  EXPECT_TRUE(std::filesystem::exists(of_live));
  directory->Clear();
  std::string left;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) left += entry.path().filename();
  EXPECT_EQ(left, "lock");
}

TEST_F(RunDirTest, ReplicasHaveDirectoriesOfTheirOwn) {
  const absl::StatusOr<RunDir> directory = RunDir::Open(path_);
  ASSERT_TRUE(directory.ok());
  EXPECT_TRUE(directory->Replicas().empty());
  for (const int32_t replica : {10, 2}) {
    const absl::StatusOr<RunDir> own = RunDir::Open(RunDir::ReplicaPath(path_, replica));
    ASSERT_TRUE(own.ok()) << own.status();
    EXPECT_EQ(own->KeepSecret("one").value(), "one");
    std::ofstream(own->group_path()) << "";
  }
  for (const char* other : {"/replica-", "/replica-x", "/replica--1", "/replica-01"})
    std::filesystem::create_directory(path_ + other);
  EXPECT_EQ(directory->Replicas(), (std::vector<int32_t>{2, 10}));
  directory->Clear();
  EXPECT_EQ(directory->Replicas(), (std::vector<int32_t>{2, 10})) << "it is about the directory itself";
  directory->RemoveReplica(2);
  EXPECT_EQ(directory->Replicas(), (std::vector<int32_t>{10}));
}

TEST_F(RunDirTest, ModelsHaveDirectoriesOfTheirOwnWhateverTheirNames) {
  const std::string long_name(300, 'a');
  const std::vector<std::string> names = {"",
                                          ".",
                                          "..",
                                          "../../etc",
                                          "/",
                                          "a/b",
                                          "a_b",
                                          "a.b",
                                          "a b",
                                          "a-b",
                                          "a_2fb",
                                          "a\xff",
                                          "A",
                                          "a",
                                          std::string("a\0b", 3),
                                          "lock",
                                          long_name,
                                          long_name + "b",
                                          long_name + "/",
                                          "SmolLM2-135M-Instruct.Q4_1",
                                          "SmolLM2-135M-Instruct.Q4_0"};
  std::set<std::string> paths;
  for (const std::string& name : names) {
    const std::string path = RunDir::ModelPath(path_, name);
    EXPECT_TRUE(paths.insert(path).second) << name << " has the directory of another one: " << path;
    EXPECT_EQ(std::filesystem::path(path).parent_path(), path_) << name;
    EXPECT_EQ(std::filesystem::path(path).lexically_normal(), path) << name;
    EXPECT_LE(path.size(), path_.size() + RunDir::kMaxModelDirBytes) << name;
    EXPECT_EQ(path.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_~",
                                     path_.size() + 1),
              std::string::npos)
        << path;
  }
  EXPECT_EQ(RunDir::ModelPath("/run", "a/b"), "/run/model-a_2fb");
  EXPECT_EQ(RunDir::ModelPath("/run", "SmolLM2-135M-Instruct"), "/run/model-SmolLM2-135M-Instruct");
  EXPECT_EQ(RunDir::ModelPath("/run", "SmolLM2-135M-Instruct.Q4_1"), "/run/model-SmolLM2~7a8a49698ff4af92")
      << "the next build finds what this one has made";
}

TEST_F(RunDirTest, ModelsAreFoundAndRemovedWithTheirReplicas) {
  const absl::StatusOr<RunDir> directory = RunDir::Open(path_);
  ASSERT_TRUE(directory.ok());
  const std::string one = RunDir::ModelPath(path_, "one"), two = RunDir::ModelPath(path_, "two");
  const std::string replica = RunDir::ReplicaPath(two, 3);
  for (const std::string& path : {one, two, replica}) {
    const absl::StatusOr<RunDir> own = RunDir::Open(path);
    ASSERT_TRUE(own.ok()) << own.status();
    std::ofstream(own->group_path()) << "";
  }
  std::ofstream(path_ + "/model-file") << "";
  std::filesystem::create_directory_symlink(parent_, path_ + "/model-link");
  EXPECT_EQ(directory->Models(), (std::vector<std::string>{one, two}));
  EXPECT_EQ(RunDir::GroupPaths(two), (std::vector<std::string>{two + "/group", replica + "/group"}));
  directory->Clear();
  EXPECT_EQ(directory->Models().size(), 2u) << "it is about the directory itself";
  directory->RemoveModel(two);
  EXPECT_EQ(directory->Models(), std::vector<std::string>{one});
  EXPECT_FALSE(std::filesystem::exists(two));
  directory->RemoveGroups();
  EXPECT_TRUE(directory->Models().empty());
  EXPECT_TRUE(std::filesystem::exists(path_ + "/lock"));
}

TEST_F(RunDirTest, AFileIsReplacedWholeOrNotAtAll) {
  const std::string path = parent_ + "/file";
  ASSERT_TRUE(WriteFileAtomically(path, "old").ok());
  EXPECT_EQ(ModeOf(path), 0600u);
  ASSERT_TRUE(WriteFileAtomically(path, "new, and longer").ok());
  EXPECT_EQ(ReadAll(path), "new, and longer");
  // The directory cannot be written: a directory has the name of a file.
  ASSERT_EQ(mkdir((path + ".new").c_str(), 0700), 0);
  const absl::Status status = WriteFileAtomically(path, "never");
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(absl::StartsWith(status.message(), path)) << status;
  EXPECT_EQ(ReadAll(path), "new, and longer");
}

TEST(ProcessIdTest, AProcessIsKnownByItsPidAndItsStart) {
  const ProcessId self = ThisProcess();
  EXPECT_EQ(self.pid, getpid());
  EXPECT_GT(self.start_time, 0u);
  EXPECT_TRUE(IsRunning(self));
  EXPECT_FALSE(IsRunning({self.pid, self.start_time + 1}));
  EXPECT_TRUE(absl::IsNotFound(OpenProcess({self.pid, self.start_time + 1}).status()));
}

TEST(ProcessIdTest, AZombieDoesNotRun) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const absl::StatusOr<ProcessId> process = FindProcess(child);
  ASSERT_TRUE(process.ok());
  const absl::StatusOr<int> open = OpenProcess(*process);
  ASSERT_TRUE(open.ok());
  EXPECT_FALSE(AwaitProcess(*open, absl::ZeroDuration()));
  ASSERT_TRUE(SignalProcess(*open, SIGKILL).ok());
  EXPECT_TRUE(AwaitProcess(*open, absl::InfiniteDuration()));
  EXPECT_FALSE(IsRunning(*process));
  EXPECT_TRUE(absl::IsNotFound(FindProcess(child).status()));
  close(*open);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(ProcessIdTest, ProcessesAreAskedAndThenKilled) {
  std::vector<ProcessId> processes;
  for (const bool stubborn : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      if (stubborn) signal(SIGTERM, SIG_IGN);
      raise(SIGSTOP);
      while (true) pause();
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    ASSERT_TRUE(WIFSTOPPED(status));
    ASSERT_EQ(kill(child, SIGCONT), 0);
    processes.push_back(FindProcess(child).value());
  }
  processes.push_back({.pid = processes[0].pid, .start_time = 1});  // a process that has ended long ago
  EXPECT_TRUE(EndProcesses(processes, absl::Milliseconds(500)).ok());
  int status = 0;
  ASSERT_EQ(waitpid(processes[0].pid, &status, 0), processes[0].pid);
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  ASSERT_EQ(waitpid(processes[1].pid, &status, 0), processes[1].pid);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

}  // namespace
}  // namespace somnus
