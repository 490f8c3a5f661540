// A process with too low a limit names the limit in a line before the process does anything.
#include "base/start_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "base/descriptors.h"

namespace somnus {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // a sanitizer maps terabytes
#else
constexpr bool kSanitized = false;
#endif

// The message of a child process with a lower limit.
std::string Under(int resource, rlim_t most, const StartNeeds& needs) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {.rlim_cur = most, .rlim_max = most};
    const std::string said = setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0
                                 ? "no such limit"
                                 : CheckStartLimits(needs).ToString();
    (void)!write(ends[1], said.data(), said.size());
    _exit(0);
  }
  close(ends[1]);
  std::string said(1 << 12, 0);
  said.resize(std::max<ssize_t>(0, read(ends[0], said.data(), said.size())));
  close(ends[0]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return said;
}

TEST(StartLimitsTest, Descriptors) {
  EXPECT_EQ(
      Under(RLIMIT_NOFILE, 24, {.descriptors = 25}),
      "FAILED_PRECONDITION: this process may have 24 file descriptors, and needs at least 25: raise the hard "
      "limit (ulimit -Hn, LimitNOFILE)");
  EXPECT_EQ(Under(RLIMIT_NOFILE, 24, {.descriptors = 24}), "OK");
}

TEST(StartLimitsTest, Addresses) {
  if (kSanitized) GTEST_SKIP();
  const rlim_t most = rlim_t{64} << 30;
  EXPECT_EQ(Under(RLIMIT_AS, most, {.address_bytes = int64_t{65} << 30}),
            "FAILED_PRECONDITION: this process may map 64.00 GiB of addresses, and needs at least 65.00 GiB "
            "beside its "
            "models: raise the limit (ulimit -v, LimitAS)");
  EXPECT_EQ(Under(RLIMIT_AS, most, {.address_bytes = int64_t{64} << 30}), "OK");
}

// Each thread takes eight megabytes of addresses for a stack.
TEST(StartLimitsTest, Threads) {
  if (kSanitized) GTEST_SKIP();
  const std::string said = Under(RLIMIT_AS, rlim_t{1} << 30, {.threads = 500});
  EXPECT_TRUE(absl::StartsWith(said, "FAILED_PRECONDITION: this process can start ")) << said;
  EXPECT_TRUE(absl::StrContains(said, " threads, and needs at least 500: raise the limit")) << said;
  EXPECT_EQ(Under(RLIMIT_NOFILE, 64, {.threads = 50, .worker_threads = 50}), "OK");
  EXPECT_EQ(Under(RLIMIT_AS, rlim_t{1} << 30, {.threads = 10, .worker_threads = 500}), "OK")
      << "workers have addresses of their own";
}

TEST(StartLimitsTest, TheLeastLimitLeavesClientsWhatTheyNeed) {
  for (const int64_t clients : {1, 10, 37, 100, 5000}) {
    const int64_t least = LeastDescriptors(clients);
    EXPECT_GE(DivideDescriptors(least).clients, clients);
    EXPECT_LT(DivideDescriptors(least - 1).clients, clients);
  }
}

}  // namespace
}  // namespace somnus
