#include "coordinator/traces/trace_context.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace somnus {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";
const std::string kWhole = "00-" + kTrace + "-" + kParent + "-01";

TEST(TraceContextTest, TheFieldsOfTheHeader) {
  const auto context = ParseTraceparent(kWhole);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->parent_id, kParent);
  EXPECT_TRUE(context->sampled);
}

TEST(TraceContextTest, TheLastBitOfTheFlagsAloneAsksForSpans) {
  const auto sampled = [](const std::string& flags) {
    return ParseTraceparent("00-" + kTrace + "-" + kParent + "-" + flags)->sampled;
  };
  EXPECT_FALSE(sampled("00"));
  EXPECT_FALSE(sampled("fe"));
  EXPECT_TRUE(sampled("ff"));
  EXPECT_TRUE(sampled("03"));
}

TEST(TraceContextTest, ALaterVersionMayGoOn) {
  EXPECT_TRUE(ParseTraceparent("cc-" + kTrace + "-" + kParent + "-01-what-comes").has_value());
  EXPECT_TRUE(ParseTraceparent("cc-" + kTrace + "-" + kParent + "-01").has_value());
  EXPECT_FALSE(ParseTraceparent("cc-" + kTrace + "-" + kParent + "-01what").has_value());
}

TEST(TraceContextTest, AnythingElseIsNoContext) {
  const std::string zeros(32, '0'), upper = "4BF92F3577B34DA6A3CE929D0E0E4736";
  for (const std::string& text :
       {std::string(), kWhole.substr(1), kWhole + "-", kWhole + "0", "ff-" + kTrace + "-" + kParent + "-01",
        "00-" + zeros + "-" + kParent + "-01", "00-" + kTrace + "-" + zeros.substr(16) + "-01",
        "00-" + upper + "-" + kParent + "-01", "00_" + kTrace + "-" + kParent + "-01",
        "00-" + kTrace + "-" + kParent + "-0x", "0g-" + kTrace + "-" + kParent + "-01",
        kWhole + ", " + kWhole, std::string(55, '\0')}) {
    EXPECT_FALSE(ParseTraceparent(text).has_value()) << text;
  }
}

TEST(TraceContextTest, TheStateIsAListOfMembers) {
  EXPECT_EQ(ParseTracestate("congo=t61rcWkgMzE"), "congo=t61rcWkgMzE");
  EXPECT_EQ(ParseTracestate("rojo=00f067aa0ba902b7 , fw529a3039@dt=FfAABB;a:1, ,x_*-/=y z"),
            "rojo=00f067aa0ba902b7,fw529a3039@dt=FfAABB;a:1,x_*-/=y z");
  EXPECT_EQ(ParseTracestate(""), "");
  for (const std::string text :
       {"congo", "=x", "congo=", "Congo=x", "congo=x,rojo", "congo=a=b", "congo=a\nb"})
    EXPECT_EQ(ParseTracestate(text), "") << text;
  std::string members;
  for (int i = 0; i < 32; ++i) members += "k" + std::to_string(i) + "=v,";
  EXPECT_NE(ParseTracestate(members), "");
  EXPECT_EQ(ParseTracestate(members + "last=v"), "");
  EXPECT_NE(ParseTracestate("k=" + std::string(510, 'v')), "");
  EXPECT_EQ(ParseTracestate("k=" + std::string(511, 'v')), "");
}

TEST(TraceContextTest, NewIdsAreDifferentAndValid) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    const std::string trace = NewTraceId(), span = NewSpanId();
    EXPECT_TRUE(ParseTraceparent("00-" + trace + "-" + span + "-00").has_value()) << trace << " " << span;
    ids.insert(trace);
    ids.insert(span);
  }
  EXPECT_EQ(ids.size(), 200u);
}

}  // namespace
}  // namespace somnus
