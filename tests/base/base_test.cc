#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/cgroup.h"
#include "base/cpus.h"
#include "base/host_port.h"
#include "base/memory_tags.h"
#include "base/utf8.h"

namespace somnus {
namespace {

TEST(HostPortTest, SplitsAndJoins) {
  for (const char* text : {"10.0.0.1:80", "name:0", "[::1]:8000", "[fe80::1%eth0]:1"}) {
    const std::optional<HostPort> split = SplitHostPort(text);
    ASSERT_TRUE(split.has_value()) << text;
    EXPECT_EQ(split->host.find('['), std::string::npos) << text;
    EXPECT_EQ(JoinHostPort(split->host, std::stoi(split->port)), text);
  }
  for (const char* text : {"", "name", ":80", "name:", "[::1]:"}) {
    EXPECT_FALSE(SplitHostPort(text).has_value()) << text;
  }
}

TEST(Utf8, InvalidRunsAreReplacedAsUnicodePrescribes) {
  // Unicode 15, table 3-8: the longest prefix of a well-formed sequence is one replacement.
  EXPECT_EQ(ReplaceInvalidUtf8("a\xF1\x80\x80\xE1\x80\xC2"
                               "b\x80"
                               "c\x80\xBF"
                               "d"),
            "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
            "b\xEF\xBF\xBD"
            "c\xEF\xBF\xBD\xEF\xBF\xBD"
            "d");
  EXPECT_TRUE(IsUtf8("h\xC3\xA9 \xF0\x9F\x98\x80"));
  EXPECT_FALSE(IsUtf8("\xED\xA0\x80"));  // a surrogate
  EXPECT_FALSE(IsUtf8("\xC0\xAF"));      // overlong
}

TEST(Utf8, ValidatesEveryForm) {
  for (const char* text : {"plain ascii that is longer than a word", "\xC2\x80", "\xE0\xA0\x80",
                           "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsUtf8(text));
  }
  for (const char* text : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF",
                           "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3", "\xE2\x82", "12345678\xFF"}) {
    EXPECT_FALSE(IsUtf8(text));
  }
}

TEST(Utf8, DrainKeepsAnUnfinishedCharacter) {
  std::string pending = "x\xF0\x9F", out;
  DrainUtf8(&pending, &out);
  EXPECT_EQ(out, "x");
  EXPECT_EQ(pending, "\xF0\x9F");
  pending += "\x98\x80";
  DrainUtf8(&pending, &out);
  EXPECT_EQ(out, "x\xF0\x9F\x98\x80");
  EXPECT_EQ(pending, "");
}

TEST(Cpus, APinnedThreadStillKnowsAllOfThem) {
  const std::vector<int> all = AllowedCpus();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(NumAllowedCpus(), CpusWithin(CpuQuota(), static_cast<int>(all.size())));
  std::thread([&] {
    ASSERT_TRUE(PinThisThread({all.back()}));
    EXPECT_EQ(sched_getcpu(), all.back());
    EXPECT_EQ(AllowedCpus(), all);
    ASSERT_TRUE(PinThisThread(all));
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), static_cast<int>(all.size()));
  }).join();
}

TEST(Cpus, AQuotaIsRoundedDownToWholeCpus) {
  EXPECT_EQ(CpusWithin(0, 8), 8) << "there is none";
  EXPECT_EQ(CpusWithin(2.9, 8), 2);
  EXPECT_EQ(CpusWithin(0.3, 8), 1);
  EXPECT_EQ(CpusWithin(16, 8), 8);
}

TEST(Cpus, ARestrictedProcessKnowsAndHasThoseAlone) {
  const std::vector<int> all = AllowedCpus();
  std::thread earlier;
  std::atomic<int> cpu{-1};
  std::atomic<bool> restricted{false};
  earlier = std::thread([&] {
    while (!restricted) std::this_thread::yield();
    cpu = sched_getcpu();
  });
  const bool moved = RestrictToCpus({all.back()});
  restricted = true;
  earlier.join();
  EXPECT_TRUE(moved);
  EXPECT_EQ(cpu, all.back());
  EXPECT_EQ(AllowedCpus(), (std::vector<int>{all.back()}));
  EXPECT_EQ(NumAllowedCpus(), 1);
  std::thread([&] { EXPECT_EQ(sched_getcpu(), all.back()); }).join();
  EXPECT_TRUE(RestrictToCpus(all));
  EXPECT_EQ(AllowedCpus(), all);
}

// As the threads of a pool whose caller is pinned while steps run.
TEST(Cpus, AThreadThatIsUnpinnedMayRunOnAllAgain) {
  std::thread([] {
    ASSERT_TRUE(PinThisThread({AllowedCpus().front()}));
    std::thread([] {
      UnpinThisThread();
      cpu_set_t set;
      CPU_ZERO(&set);
      ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
      EXPECT_EQ(CPU_COUNT(&set), static_cast<int>(AllowedCpus().size()));
    }).join();
  }).join();
}

TEST(MemoryTags, AreTheThreeOfTheDesign) {
  EXPECT_TRUE(IsMemoryTag("weights"));
  EXPECT_TRUE(IsMemoryTag("kv_cache"));
  EXPECT_TRUE(IsMemoryTag("workspace"));
  EXPECT_FALSE(IsMemoryTag(""));
  EXPECT_FALSE(IsMemoryTag("Weights"));
}

}  // namespace
}  // namespace somnus
