// Where a process finds its place in a cluster: environments as launchers make them, the order of sources,
// and the errors of malformed variables.

#include "base/discovery.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

std::string Summary(const Environment& environment) {
  const absl::StatusOr<Discovery> found = Discover(environment);
  return found.ok() ? DescribeDiscovery(*found) : std::string(found.status().message());
}

// Recorded from Slurm 22.05: sbatch --nodes=2 --ntasks-per-node=2.
const Environment kSlurmBatch = {
    {"SLURMD_NODENAME", "n0"},   {"SLURM_GTIDS", "0"},         {"SLURM_JOB_ID", "31234567"},
    {"SLURM_LOCALID", "0"},      {"SLURM_NNODES", "2"},        {"SLURM_JOB_NODELIST", "n[0-1]"},
    {"SLURM_NODEID", "0"},       {"SLURM_NODELIST", "n[0-1]"}, {"SLURM_NPROCS", "4"},
    {"SLURM_NTASKS", "4"},       {"SLURM_PROCID", "0"},        {"SLURM_NTASKS_PER_NODE", "2"},
    {"SLURM_JOB_NUM_NODES", "2"}};

// Within it: srun --overlap -N1 -n1.
Environment SlurmCoordinatorStep() {
  Environment step = kSlurmBatch;
  step["SLURM_STEP_ID"] = "1";
  step["SLURM_STEP_NUM_TASKS"] = step["SLURM_NTASKS"] = "1";
  step["SLURM_STEP_NODELIST"] = "n0";
  return step;
}

// Within it: srun --overlap, the last task.
Environment SlurmWorkersStep() {
  Environment step = kSlurmBatch;
  step["SLURM_STEP_ID"] = "0";
  step["SLURM_STEP_NUM_TASKS"] = "4";
  step["SLURM_PROCID"] = "3";
  step["SLURM_LOCALID"] = "1";
  step["SLURMD_NODENAME"] = "n1";
  return step;
}

const Environment kLeaderWorkerSet = {{"LWS_LEADER_ADDRESS", "somnus-0.somnus.default"},
                                      {"LWS_GROUP_SIZE", "4"},
                                      {"LWS_WORKER_INDEX", "2"},
                                      {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};

const Environment kTorchrun = {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "29400"}, {"WORLD_SIZE", "8"},
                               {"RANK", "5"},           {"LOCAL_RANK", "1"},      {"GROUP_RANK", "1"},
                               {"NODE_RANK", "1"},      {"LOCAL_WORLD_SIZE", "4"}};

const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"PMIX_RANK", "3"}};

const Environment kMpich = {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}};

TEST(DiscoveryTest, NothingIsFoundWhereThereIsNoLauncher) {
  EXPECT_EQ(Summary({}), "");
  EXPECT_EQ(Summary({{"HOME", "/root"}, {"CUDA_VISIBLE_DEVICES", "0"}, {"SLURM_CONF", "/etc/slurm.conf"}}),
            "");
}

TEST(DiscoveryTest, SlurmsBatchScriptHasNoRank) {
  EXPECT_EQ(Summary(kSlurmBatch),
            "coordinator n0:24567 from SLURM_JOB_NODELIST, world size 4 from SLURM_NTASKS");
}

TEST(DiscoveryTest, SlurmsStepOfOneTaskTellsTheAddressAlone) {
  EXPECT_EQ(Summary(SlurmCoordinatorStep()), "coordinator n0:24567 from SLURM_JOB_NODELIST");
}

TEST(DiscoveryTest, SlurmsTasksAreRanks) {
  EXPECT_EQ(Summary(SlurmWorkersStep()),
            "coordinator n0:24567 from SLURM_JOB_NODELIST, world size 4 from SLURM_STEP_NUM_TASKS, rank 3 "
            "from SLURM_PROCID, device index 1 from SLURM_LOCALID");
}

TEST(DiscoveryTest, ATaskThatSeesOneGpuTakesIt) {
  Environment environment = SlurmWorkersStep();
  environment["CUDA_VISIBLE_DEVICES"] = "1";  // --gpus-per-task=1
  EXPECT_TRUE(absl::StrContains(Summary(environment), "device index 0 from CUDA_VISIBLE_DEVICES"));
  environment["CUDA_VISIBLE_DEVICES"] = "0,1";  // --gpus-per-node=2
  EXPECT_TRUE(absl::StrContains(Summary(environment), "device index 1 from SLURM_LOCALID"));
}

TEST(DiscoveryTest, LeaderWorkerSet) {
  EXPECT_EQ(Summary(kLeaderWorkerSet),
            "coordinator somnus-0.somnus.default:50052 from LWS_LEADER_ADDRESS, world size 4 from "
            "LWS_GROUP_SIZE, rank 2 from LWS_WORKER_INDEX");
}

TEST(DiscoveryTest, Torchrun) {
  EXPECT_EQ(Summary(kTorchrun),
            "coordinator head:29400 from MASTER_ADDR, world size 8 from WORLD_SIZE, rank 5 from RANK, device "
            "index 1 from LOCAL_RANK");
}

TEST(DiscoveryTest, Mpi) {
  EXPECT_EQ(Summary(kOpenMpi),
            "world size 4 from OMPI_COMM_WORLD_SIZE, rank 3 from OMPI_COMM_WORLD_RANK, device index 1 from "
            "OMPI_COMM_WORLD_LOCAL_RANK");
  EXPECT_EQ(Summary(kMpich),
            "world size 3 from PMI_SIZE, rank 2 from PMI_RANK, device index 2 from MPI_LOCALRANKID");
}

TEST(DiscoveryTest, OurVariablesThenSlurmThenLeaderWorkerSetThenTorchrunThenMpi) {
  Environment all = kMpich;
  const auto has = [&](const char* text) { return absl::StrContains(Summary(all), text); };
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_TRUE(has("rank 3 from OMPI_COMM_WORLD_RANK"));
  all.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_TRUE(has("rank 5 from RANK"));
  all.insert(kLeaderWorkerSet.begin(), kLeaderWorkerSet.end());
  EXPECT_TRUE(has("rank 2 from LWS_WORKER_INDEX"));
  EXPECT_TRUE(has("device index 1 from LOCAL_RANK"));  // which LeaderWorkerSet does not tell
  const Environment slurm = SlurmWorkersStep();
  all.insert(slurm.begin(), slurm.end());
  EXPECT_TRUE(has("rank 3 from SLURM_PROCID"));
  all["SOMNUS_RANK"] = "0";
  all["SOMNUS_WORLD_SIZE"] = "2";
  all["SOMNUS_COORDINATOR"] = "[fd00::1]:9";
  all["SOMNUS_DEVICE_INDEX"] = "7";
  all["SOMNUS_HOST"] = "10.0.0.9";
  EXPECT_EQ(Summary(all),
            "coordinator [fd00::1]:9 from SOMNUS_COORDINATOR, world size 2 from SOMNUS_WORLD_SIZE, rank 0 "
            "from SOMNUS_RANK, device index 7 from SOMNUS_DEVICE_INDEX, host 10.0.0.9 from SOMNUS_HOST");
}

TEST(DiscoveryTest, AnEmptyVariableIsNotSet) {
  EXPECT_EQ(Summary({{"SOMNUS_RANK", ""}, {"SOMNUS_COORDINATOR", ""}, {"RANK", "1"}}), "rank 1 from RANK");
}

TEST(DiscoveryTest, AMalformedVariableOfOursIsAnErrorThatNamesIt) {
  for (const char* variable :
       {"SOMNUS_COORDINATOR", "SOMNUS_WORLD_SIZE", "SOMNUS_RANK", "SOMNUS_DEVICE_INDEX", "SOMNUS_HOST"}) {
    const absl::StatusOr<Discovery> found = Discover({{variable, "no good!"}, {"RANK", "1"}});
    ASSERT_TRUE(absl::IsInvalidArgument(found.status())) << variable;
    EXPECT_TRUE(absl::StartsWith(found.status().message(), absl::StrCat(variable, ": 'no good!' is n")));
  }
  const absl::StatusOr<Discovery> found = Discover({{"SOMNUS_RANK", std::string(100000, '9')}});
  EXPECT_LT(found.status().message().size(), 200u);
}

TEST(DiscoveryTest, ALaunchersMalformedVariableIsPassedOver) {
  Environment environment = SlurmWorkersStep();
  environment["SLURM_JOB_NODELIST"] = "n[3-1]";
  environment["SLURM_PROCID"] = "-1";
  environment["MASTER_ADDR"] = "head";
  environment["RANK"] = "2";
  EXPECT_EQ(
      Summary(environment),
      "coordinator head:50052 from MASTER_ADDR, world size 4 from SLURM_STEP_NUM_TASKS, rank 2 from RANK, "
      "device index 1 from SLURM_LOCALID, passed over SLURM_JOB_NODELIST: 'n[3-1]' has a range that ends "
      "before it starts at byte 5, passed over SLURM_PROCID: '-1' is not a whole number from 0 to 1023");
  EXPECT_EQ(
      Summary({{"MASTER_ADDR", "head"}, {"MASTER_PORT", "0"}}),
      "passed over MASTER_ADDR: 'head' comes with a MASTER_PORT that is not a whole number from 1 to 65535");
  EXPECT_EQ(Summary({{"LWS_LEADER_ADDRESS", "unix:/tmp/x"}, {"LWS_GROUP_SIZE", "many"}}),
            "passed over LWS_LEADER_ADDRESS: 'unix:/tmp/x' is not the name or the address of a host, passed "
            "over LWS_GROUP_SIZE: 'many' is not a whole number from 1 to 1024");
}

TEST(DiscoveryTest, CoordinatorAddresses) {
  for (const char* good :
       {"n0:1", "10.0.0.1:65535", "[::1]:50052", "unix:/run/somnus/cluster.sock", "a-b.c_d:7"}) {
    const absl::StatusOr<CoordinatorAddress> address = ParseCoordinatorAddress(good);
    ASSERT_TRUE(address.ok()) << good;
    EXPECT_EQ(address->Text(), good);
  }
  for (const char* bad : {"", ":", "n0", "n0:", ":5", "n0:0", "n0:65536", "n0:5x", "::1:5", "[n0]:5", "[::1]",
                          "dns:///n0:5", "-n0:5", "n 0:5", "unix:relative"}) {
    EXPECT_FALSE(ParseCoordinatorAddress(bad).ok()) << bad;
  }
}

TEST(DiscoveryTest, TheCoordinatorListensWhereWorkersReachIt) {
  EXPECT_EQ(ParseCoordinatorAddress("127.0.0.2:1")->ListenHost(), "127.0.0.2");
  EXPECT_EQ(ParseCoordinatorAddress("[::1]:1")->ListenHost(), "[::1]");
  EXPECT_EQ(ParseCoordinatorAddress("n0:1")->ListenHost(), "0.0.0.0");
}

TEST(DiscoveryTest, TheProcessesOwnEnvironment) {
  ASSERT_EQ(setenv("SOMNUS_RANK", "a=b", 1), 0);
  EXPECT_EQ(ProcessEnvironment()["SOMNUS_RANK"], "a=b");
  unsetenv("SOMNUS_RANK");
  EXPECT_EQ(ProcessEnvironment().count("SOMNUS_RANK"), 0u);
}

}  // namespace
}  // namespace somnus
