#include "coordinator/metrics/process_numbers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "absl/time/clock.h"

namespace somnus {
namespace {

// The fields up to the 24th, as proc(5) numbers them.
std::string Stat(const std::string& name, const std::string& user, const std::string& pages) {
  return "77 (" + name + ") S 1 2 3 4 5 6 7 8 9 10 " + user + " 50 0 0 20 0 30 0 1000 4096000 " + pages +
         "\n";
}

TEST(ProcessNumbersTest, TheFieldsOfProcStat) {
  const auto numbers = ParseProcessStat(Stat("x", "250", "20"), /*boot_time=*/5000, 100, 4096);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_EQ(numbers->cpu_seconds, 3);
  EXPECT_EQ(numbers->start_time, 5010);
  EXPECT_EQ(numbers->virtual_bytes, 4096000);
  EXPECT_EQ(numbers->resident_bytes, 20 * 4096);
}

TEST(ProcessNumbersTest, AProgramMayHaveAnyName) {
  const auto numbers = ParseProcessStat(Stat("a) b (c 1 2", "250", "20"), 0, 100, 4096);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_EQ(numbers->cpu_seconds, 3);
}

TEST(ProcessNumbersTest, AnotherFormIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("77 (x) S 1 2"), Stat("x", "many", "20"), Stat("x", "250", "")})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseProcessStat(text, 0, 100, 4096).status())) << text;
}

TEST(ProcessNumbersTest, ThisProcess) {
  const auto before = ReadProcessNumbers();
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_GT(before->resident_bytes, 0);
  EXPECT_GE(before->virtual_bytes, before->resident_bytes);
  EXPECT_GT(before->start_time, 0);
  EXPECT_LT(before->start_time, absl::ToUnixSeconds(absl::Now()) + 5);
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(ReadProcessNumbers()->open_fds, before->open_fds + 1);
  close(fd);
}

}  // namespace
}  // namespace somnus
