#include "proto/group_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

class GroupFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    group_.set_group_epoch(7);
    group_.set_world_size(2);
    group_.set_model_path("/models/a \"quoted\" one");
    group_.set_options_digest("0123456789abcdef");
    Add(0, ThisProcess());
  }

  void Add(int rank, const ProcessId& process) {
    v1::LocalWorker* worker = group_.add_workers();
    worker->set_rank(rank);
    worker->set_pid(process.pid);
    worker->set_start_time(process.start_time);
  }
  std::string Text() {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TempDir directory_;
  const std::string path_ = directory_.path() + "/group";
  v1::GroupFile group_;
};

TEST_F(GroupFileTest, WhatIsWrittenIsRead) {
  EXPECT_TRUE(absl::IsNotFound(ReadGroupFile(path_).status()));
  ASSERT_TRUE(WriteGroupFile(path_, group_).ok());
  const absl::StatusOr<v1::GroupFile> read = ReadGroupFile(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->group_epoch(), 7);
  EXPECT_EQ(read->model_path(), group_.model_path());
  EXPECT_EQ(read->options_digest(), group_.options_digest());
  EXPECT_EQ(read->boot_id().size(), 36u) << read->boot_id();
  ASSERT_EQ(read->workers_size(), 1);
  EXPECT_EQ(ProcessOf(read->workers(0)), ThisProcess());
}

TEST_F(GroupFileTest, OnlyProcessesOfThisStartThatRunAreLive) {
  Add(1, {.pid = getpid(), .start_time = ThisProcess().start_time - 1});  // who had the pid before
  ASSERT_TRUE(WriteGroupFile(path_, group_).ok());
  v1::GroupFile read = ReadGroupFile(path_).value();
  ASSERT_EQ(LiveWorkers(read).size(), 1u);
  EXPECT_EQ(LiveWorkers(read)[0].rank(), 0);
  read.set_boot_id("of an earlier start");
  EXPECT_TRUE(LiveWorkers(read).empty());
}

TEST_F(GroupFileTest, EveryDamageIsSeen) {
  ASSERT_TRUE(WriteGroupFile(path_, group_).ok());
  const std::string whole = Text();
  const std::string damaged[] = {"",
                                 std::string(100, '\0'),
                                 "no group at all",
                                 whole + "unknown_field: 1\n",
                                 whole.substr(0, whole.size() / 2),
                                 "world_size: 2 group_epoch: -1",
                                 "world_size: 2 workers { rank: 2 pid: 77 }",
                                 "world_size: 2 workers { rank: 0 pid: 1 }",
                                 "world_size: 2 workers { rank: 0 pid: 77 } workers { rank: 0 pid: 78 }"};
  for (const std::string& text : damaged) {
    std::ofstream(path_, std::ios::trunc) << text;
    const absl::Status status = ReadGroupFile(path_).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status << "\n" << text;
  }
}

}  // namespace
}  // namespace somnus
