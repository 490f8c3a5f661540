#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/cli/server.h"

namespace somnus::cli {
namespace {

TEST(ParseUrlTest, TakesWhatPeopleWrite) {
  const std::pair<const char*, const char*> cases[] = {
      {"http://127.0.0.1:8000", "127.0.0.1:8000"},
      {"http://10.0.0.1:9000/", "10.0.0.1:9000"},
      {"http://host.example:80/v1", "host.example:80"},
      {"localhost:1234", "localhost:1234"},
      {"http://gpu-host", "gpu-host:8000"},
      {"http://[::1]:9000/v1", "[::1]:9000"},
      {"[fe80::1]", "[fe80::1]:8000"},
      {"https://host.example:443/v1", "host.example:443"},
  };
  for (const auto& [url, address] : cases) {
    const absl::StatusOr<Address> parsed = ParseUrl(url);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->ToString(), address) << url;
    EXPECT_EQ(parsed->tls, absl::StartsWith(url, "https://")) << url;
  }
}

TEST(ParseUrlTest, APathIsAPrefix) {
  const std::pair<const char*, const char*> cases[] = {
      {"http://host:80", ""},          {"http://host:80/", ""},         {"http://host:80/v1", ""},
      {"http://host:80/v1/", ""},      {"http://host:80/llm", "/llm"},  {"host/llm/", "/llm"},
      {"https://host/a/b/v1", "/a/b"}, {"http://[::1]:80/v1x", "/v1x"},
  };
  for (const auto& [url, prefix] : cases) {
    const absl::StatusOr<Address> parsed = ParseUrl(url);
    ASSERT_TRUE(parsed.ok()) << url << ": " << parsed.status();
    EXPECT_EQ(parsed->prefix, prefix) << url;
    EXPECT_TRUE(absl::EndsWith(parsed->Url(), absl::StrCat(parsed->ToString(), prefix))) << parsed->Url();
  }
}

TEST(ParseUrlTest, RefusesWhatIsNoAddress) {
  for (const char* url :
       {"", "http://", "http://:8000", "http://host:0", "http://host:65536", "http://host:x",
        "http://host:", "ftp://host", "http://user@host", "http://[::1", "::1", "a b", "https://",
        "http://host/a b", "http://host/a?b=c", "http://host/a#b", "http://host/a\r\nb"}) {
    EXPECT_EQ(ParseUrl(url).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
}

}  // namespace
}  // namespace somnus::cli
