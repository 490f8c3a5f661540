// Whose request it is, over HTTP.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "coordinator/http/api_key.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

TEST_F(ApiServerTest, TheFieldNamesTheUserAndElseTheKeyDoes) {
  Serve();
  const auto user_of = [&](const std::string& field, const std::string& header) {
    const HttpReply reply = Send("POST", "/v1/completions",
                                 absl::StrCat(R"({"prompt": "abc", "max_tokens": 2)", field, "}"), header);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return engine_->last_request().user;
  };
  EXPECT_EQ(user_of("", ""), "");
  EXPECT_EQ(user_of(R"(, "user": null)", ""), "");
  EXPECT_EQ(user_of(R"(, "user": "")", ""), "");
  EXPECT_EQ(user_of(R"(, "user": "ann")", ""), "user:ann");
  EXPECT_EQ(user_of(R"(, "user": "ann")", "Authorization: Bearer one\r\n"), "user:ann");
  const std::string one = user_of("", "Authorization: Bearer one\r\n");
  EXPECT_NE(one, "");
  EXPECT_FALSE(absl::StrContains(one, "one")) << "a key is in no name";
  EXPECT_EQ(user_of("", "Authorization: Bearer one\r\n"), one);
  EXPECT_NE(user_of("", "Authorization: Bearer two\r\n"), one);
  EXPECT_NE(user_of(absl::StrCat(R"(, "user": ")", one, "\""), ""), one)
      << "no field makes the name of a key";
  EXPECT_EQ(Complete(R"({"prompt": "abc", "user": 5})").status, 400);
}

TEST(UserNames, AreShortAndTellUsersApart) {
  const std::string longer(100'000, 'u');
  EXPECT_LE(UserOfField(longer).size(), 70u);
  EXPECT_EQ(UserOfField(longer), UserOfField(longer));
  EXPECT_NE(UserOfField(longer), UserOfField(longer + "u"));
  EXPECT_NE(UserOfField("a"), UserOfField("b"));
}

TEST(UserNames, PeopleReadTheFieldAndNoFieldLooksLikeAKey) {
  EXPECT_EQ(ShownUser(UserOfField("ann")), "ann");
  EXPECT_EQ(ShownUser(""), "");
  const std::string key = UserOfKey("Bearer one");
  EXPECT_EQ(ShownUser(key), key);
  EXPECT_NE(ShownUser(UserOfField(key)), key);
}

}  // namespace
}  // namespace somnus
