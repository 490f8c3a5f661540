// Flags about browsers and web pages.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/flags/flags.h"

namespace somnus {
namespace {

using Words = std::vector<std::string>;

TEST(BrowserFlagsTest, ListsAreWordsOrJson) {
  const auto defaults = ParseFlags({"m"});
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_TRUE(defaults->cors.allowed_origins.empty()) << "no page may do anything";
  EXPECT_EQ(defaults->cors.allowed_methods, Words{"*"});
  EXPECT_EQ(defaults->cors.allowed_headers, Words{"*"});
  EXPECT_FALSE(defaults->cors.allow_credentials);
  EXPECT_FALSE(defaults->request_id_headers);
  const auto given = ParseFlags({"m", R"(--allowed-origins=["https://a.example", "http://b:3000"])",
                                 "--allowed-methods=GET, POST", "--allow-credentials",
                                 "--admin-allowed-hosts=gpu.example,other", "--enable-request-id-headers"});
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->cors.allowed_origins, (Words{"https://a.example", "http://b:3000"}));
  EXPECT_EQ(given->cors.allowed_methods, (Words{"GET", "POST"}));
  EXPECT_TRUE(given->cors.allow_credentials);
  EXPECT_EQ(given->admin_allowed_hosts, (Words{"gpu.example", "other"}));
  EXPECT_TRUE(given->request_id_headers);
  EXPECT_EQ(ParseFlags({"m", "--allowed-origins=*"})->cors.allowed_origins, Words{"*"});
  EXPECT_TRUE(ParseFlags({"m", "--allowed-origins=[]"})->cors.allowed_origins.empty());
}

TEST(BrowserFlagsTest, AProxyMayLeaveItsPath) {
  const auto root_of = [](const char* flag) { return ParseFlags({"m", flag})->root_path; };
  EXPECT_EQ(root_of("--root-path=/llm"), "/llm");
  EXPECT_EQ(root_of("--root-path=/a/b-1/"), "/a/b-1");
  EXPECT_EQ(root_of("--root-path=/"), "");
  EXPECT_EQ(root_of("--root-path="), "");
  for (const char* flag : {"--root-path=llm", "--root-path=/a b", "--root-path=/a//b", "--root-path=//",
                           "--root-path=/a?b", "--root-path=/%41"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseFlags({"m", flag}).status())) << flag;
}

TEST(BrowserFlagsTest, WhatNoBrowserWouldSendIsRefused) {
  for (const char* flag :
       {"--allowed-origins=chat.example", "--allowed-origins=https://a/", "--allowed-origins=[1]",
        "--allowed-origins=[\"a", "--allowed-methods=", "--allowed-headers=a b", "--admin-allowed-hosts=a,,b",
        "--allowed-headers=X\r\nY"}) {
    const absl::Status status = ParseFlags({"m", flag}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << flag;
  }
}

}  // namespace
}  // namespace somnus
