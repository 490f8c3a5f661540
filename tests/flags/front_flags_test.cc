// Flags of what clients meet first: ports, keys, certificates, the limits of connections and bodies, chat
// templates, tools and schemas.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/flags/flags.h"

namespace somnus {
namespace {

TEST(FrontFlagsTest, AnyPortIsForAllListenersThatAreNotGivenOne) {
  const auto any = ParseFlags({"m", "--port=0", "--grpc-port=7000"});
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_EQ((std::vector<int32_t>{any->port, any->admin_port, any->grpc_port, any->control_port}),
            (std::vector<int32_t>{0, 0, 7000, 0}));
  const auto one = ParseFlags({"m", "--admin-port=0", "--port=9000"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ((std::vector<int32_t>{one->port, one->admin_port, one->grpc_port, one->control_port}),
            (std::vector<int32_t>{9000, 0, 9001, 9002}));
}

TEST(FrontFlagsTest, OnePortMovesAllThatAreNotGiven) {
  const auto ports_of = [](const std::vector<std::string>& args) {
    const absl::StatusOr<Flags> flags = ParseFlags(args);
    EXPECT_TRUE(flags.ok()) << flags.status();
    return std::vector<int32_t>{flags->port, flags->admin_port, flags->grpc_port, flags->control_port};
  };
  EXPECT_EQ(ports_of({"m"}), (std::vector<int32_t>{8000, 8001, 50051, 50054}));
  EXPECT_EQ(ports_of({"m", "--port=8000"}), (std::vector<int32_t>{8000, 8001, 50051, 50054}));
  EXPECT_EQ(ports_of({"m", "--port=9000"}), (std::vector<int32_t>{9000, 9001, 9002, 9003}));
  EXPECT_EQ(ports_of({"m", "--port=9000", "--control-port=9001"}),
            (std::vector<int32_t>{9000, 9002, 9003, 9001}))
      << "a port that is given is nobody else's";
  EXPECT_EQ(ports_of({"m", "--port=50050", "--workers=remote:2"}),
            (std::vector<int32_t>{50050, 50051, 50053, 50054}))
      << "remote workers register at 50052";
  EXPECT_EQ(ParseFlags({"m", "--port=65534"}).status().message(),
            "--port: 65534 leaves no number for --grpc-port");
}

TEST(FrontFlagsTest, KeysComeFromTheirFlagsElseFromTheEnvironment) {
  const Environment environment = {{"SOMNUS_API_KEY", "clients"}, {"SOMNUS_ADMIN_API_KEY", "operators"}};
  const auto found = ParseFlags({"m"}, environment);
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->api_keys.Opens("Bearer clients"));
  EXPECT_FALSE(found->api_keys.Opens("Bearer operators"));
  EXPECT_TRUE(found->admin_api_keys.Opens("Bearer operators"));
  const auto given = ParseFlags({"m", "--api-key=a", "--admin-api-key=b"}, environment);
  ASSERT_TRUE(given.ok());
  EXPECT_TRUE(given->api_keys.Opens("Bearer a"));
  EXPECT_FALSE(given->api_keys.Opens("Bearer clients"));
  EXPECT_TRUE(given->admin_api_keys.Opens("Bearer b"));
  EXPECT_TRUE(ParseFlags({"m"})->admin_api_keys.empty());
}

TEST(FrontFlagsTest, DevModeIsOffUnlessAFlagOrTheEnvironmentSaysSo) {
  const Environment on = {{"VLLM_SERVER_DEV_MODE", "1"}, {"SOMNUS_API_KEY", "clients"}};
  EXPECT_FALSE(ParseFlags({"m"})->server_dev_mode);
  EXPECT_FALSE(ParseFlags({"m"}, {{"VLLM_SERVER_DEV_MODE", "0"}})->server_dev_mode);
  EXPECT_TRUE(ParseFlags({"m", "--server-dev-mode"})->server_dev_mode);
  const auto found = ParseFlags({"m"}, on);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->server_dev_mode);
  EXPECT_TRUE(found->admin_api_keys.Opens("Bearer clients"));
  EXPECT_FALSE(found->admin_api_keys.Opens("Bearer other"));
  const auto given = ParseFlags({"m", "--admin-api-key=operators"}, on);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_FALSE(given->admin_api_keys.Opens("Bearer clients"));
  EXPECT_TRUE(ParseFlags({"m"}, {{"SOMNUS_API_KEY", "clients"}})->admin_api_keys.empty());
}

TEST(FrontFlagsTest, SeveralKeysOpenAndThoseOfAFileHaveNames) {
  const std::string path = ::testing::TempDir() + "/keys";
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(path) << text;
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  };
  write("# of the team\n\nalice:a:1\n bob : b\n", 0600);
  EXPECT_FALSE(ParseFlags({"m", "--api-key-file=" + path}).ok()) << "a name is one word";
  write("# of the team\n\nalice:a:1\nbob:b\n", 0600);
  const auto flags = ParseFlags({"m", "--api-key=x", "--api-key", "y", "--api-key-file=" + path});
  ASSERT_TRUE(flags.ok()) << flags.status();
  for (const char* key : {"x", "y", "a:1", "b"})
    EXPECT_TRUE(flags->api_keys.Opens(std::string("Bearer ") + key)) << key;
  for (const char* no : {"", "Bearer ", "Bearer a", "alice:a:1", "Bearer alice:a:1", "Basic b"})
    EXPECT_FALSE(flags->api_keys.Opens(no)) << no;
  EXPECT_EQ(flags->api_keys.NameOf("bearer a:1"), "alice");
  EXPECT_EQ(flags->api_keys.NameOf("Bearer x"), "");
  EXPECT_TRUE(flags->admin_api_keys.empty());

  const auto message = [&] {
    return std::string(ParseFlags({"m", "--admin-api-key-file=" + path}).status().message());
  };
  write("alice:secret\nalice:secreter\n", 0600);
  EXPECT_EQ(message(), "--admin-api-key-file: " + path + ": line 2 has the name of an earlier key");
  write("a secret\n", 0600);
  EXPECT_EQ(message().find("secret"), std::string::npos) << message();
  write("alice:secret\n", 0644);
  EXPECT_NE(message().find("open to others"), std::string::npos) << message();
  write("\n", 0600);
  EXPECT_NE(message().find("has no key"), std::string::npos) << message();
  ::unlink(path.c_str());
  EXPECT_NE(message().find("No such file"), std::string::npos) << message();
}

TEST(FrontFlagsTest, CertificatesThatAreOfNoUseAreNamed) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"m", "--ssl-certfile=/none"}, "--ssl-keyfile"},
      {{"m", "--ssl-keyfile=/none"}, "--ssl-certfile"},
      {{"m", "--ssl-ca-certs=/none"}, "--ssl-certfile"},
      {{"m", "--ssl-certfile=/none", "--ssl-keyfile=/none"}, "--ssl-certfile"},
      {{"m", "--admin-ssl-certfile=/none"}, "--admin-ssl-keyfile"},
      {{"m", "--admin-ssl-certfile=/none", "--admin-ssl-keyfile=/none"}, "--admin-ssl-certfile"},
  };
  for (const auto& [args, flag] : cases) {
    const absl::Status status = ParseFlags(args).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message().substr(0, status.message().find(':')), flag);
  }
}

TEST(FrontFlagsTest, LimitsOfTheFront) {
  const auto flags = ParseFlags({"m", "--max-body-bytes=1MiB", "--max-connections=9", "--idle-timeout=0.5",
                                 "--linger-silence=250ms", "--max-linger-bytes=1MiB",
                                 "--max-num-waiting-tokens=77", "--max-stop-strings=16"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->limits.max_body_bytes, 1 << 20);
  EXPECT_EQ(flags->limits.max_connections, 9);
  EXPECT_EQ(flags->limits.idle_timeout, absl::Milliseconds(500));
  EXPECT_EQ(flags->limits.linger_silence, absl::Milliseconds(250));
  EXPECT_EQ(flags->limits.max_linger_bytes, 1 << 20);
  EXPECT_EQ(flags->limits.max_stop_strings, 16);
  EXPECT_EQ(flags->engine.queue.max_num_waiting_tokens, 77);
}

TEST(FrontFlagsTest, ATemplateIsAFileOrItsText) {
  const std::string path = ::testing::TempDir() + "/template.jinja";
  std::ofstream(path) << "{{ messages }}";
  EXPECT_EQ(ParseFlags({"m", "--chat-template=" + path})->chat.chat_template, "{{ messages }}");
  EXPECT_EQ(ParseFlags({"m", "--chat-template", "{{ x }}"})->chat.chat_template, "{{ x }}");
  EXPECT_FALSE(ParseFlags({"m", "--chat-template=/none"}).ok());
  std::ofstream(path) << "";
  EXPECT_FALSE(ParseFlags({"m", "--chat-template=" + path}).ok());
}

TEST(FrontFlagsTest, DefaultTemplateKwargsAreAnObjectOfVariables) {
  EXPECT_EQ(ParseFlags({"m", R"(--default-chat-template-kwargs={"a": false})"})->chat.default_template_kwargs,
            R"({"a": false})");
  for (const char* wrong : {"[]", "{", R"({"messages": []})", "a=b"})
    EXPECT_FALSE(ParseFlags({"m", "--default-chat-template-kwargs", wrong}).ok()) << wrong;
}

TEST(FrontFlagsTest, ToolsMayBeCalledWithoutForceUnlessTheFlagSaysNo) {
  EXPECT_TRUE(ParseFlags({"m"})->chat.auto_tool_choice);
  for (const char* flag : {"--enable-auto-tool-choice", "--enable-auto-tool-choice=true"}) {
    const absl::StatusOr<Flags> flags = ParseFlags({"m", flag});
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_TRUE(flags->chat.auto_tool_choice) << flag;
  }
  EXPECT_FALSE(ParseFlags({"m", "--enable-auto-tool-choice=false"})->chat.auto_tool_choice);
  EXPECT_FALSE(ParseFlags({"m", "--enable-auto-tool-choice=sometimes"}).ok());
}

// A flag about structured outputs, and the value of the member that it sets.
struct StructuredFlag {
  const char* name;  // behind "structured-outputs-"
  const char* text;
  int64_t value;  // milliseconds of a time
  int64_t (*get)(const Flags& f);
};

constexpr StructuredFlag kStructuredFlags[] = {
    {"max-bytes", "3MiB", 3 << 20, [](const Flags& f) { return int64_t{f.chat.grammar_cache.max_bytes}; }},
    {"max-compile-bytes", "5MiB", 5 << 20,
     [](const Flags& f) { return int64_t{f.chat.grammar_limits.compile_bytes}; }},
    {"compile-timeout", "110ms", 110,
     [](const Flags& f) { return int64_t{absl::ToInt64Milliseconds(f.chat.grammar_limits.compile_time)}; }},
    {"wait", "120ms", 120,
     [](const Flags& f) { return int64_t{absl::ToInt64Milliseconds(f.chat.grammar_cache.max_wait)}; }},
    {"mask-timeout", "130ms", 130,
     [](const Flags& f) { return int64_t{absl::ToInt64Milliseconds(f.chat.grammar_limits.step_time)}; }},
    {"max-source-bytes", "7MiB", 7 << 20,
     [](const Flags& f) { return int64_t{f.chat.grammar_limits.source_bytes}; }},
    {"max-depth", "141", 141, [](const Flags& f) { return int64_t{f.chat.grammar_limits.depth}; }},
    {"max-whitespace", "142", 142,
     [](const Flags& f) { return int64_t{f.chat.grammar_limits.max_whitespace}; }},
    {"max-chain-branches", "143", 143,
     [](const Flags& f) { return int64_t{f.chat.grammar_limits.max_chain_branches}; }},
    {"max-sequence-bytes", "9MiB", 9 << 20,
     [](const Flags& f) { return int64_t{f.chat.grammar_limits.matcher_bytes}; }},
    {"mask-threads", "11", 11, [](const Flags& f) { return int64_t{f.engine.scheduler.mask_threads}; }},
    {"max-schema-bytes", "11MiB", 11 << 20, [](const Flags& f) { return int64_t{f.chat.gate.max_bytes}; }},
    {"max-schema-depth", "144", 144, [](const Flags& f) { return int64_t{f.chat.gate.max_depth}; }},
    {"max-schema-values", "145", 145, [](const Flags& f) { return int64_t{f.chat.gate.max_values}; }},
    {"max-schema-keys", "146", 146, [](const Flags& f) { return int64_t{f.chat.gate.max_keys}; }},
    {"max-name-bytes", "147", 147, [](const Flags& f) { return int64_t{f.chat.gate.max_name_bytes}; }},
    {"max-schema-cases", "148", 148, [](const Flags& f) { return int64_t{f.chat.gate.max_cases}; }},
    {"max-schema-definitions", "149", 149,
     [](const Flags& f) { return int64_t{f.chat.gate.max_definitions}; }},
    {"max-schema-steps", "1500", 1500, [](const Flags& f) { return int64_t{f.chat.gate.max_steps}; }},
    {"max-rewritten-bytes", "13MiB", 13 << 20,
     [](const Flags& f) { return int64_t{f.chat.gate.max_output_bytes}; }},
    {"max-pattern-bytes", "151", 151, [](const Flags& f) { return int64_t{f.chat.gate.regex.max_bytes}; }},
    {"max-pattern-depth", "152", 152, [](const Flags& f) { return int64_t{f.chat.gate.regex.max_depth}; }},
    {"max-pattern-repeat", "153", 153, [](const Flags& f) { return int64_t{f.chat.gate.regex.max_repeat}; }},
    {"max-pattern-alternatives", "154", 154,
     [](const Flags& f) { return int64_t{f.chat.gate.regex.max_alternatives}; }},
    {"max-pattern-terms", "1550", 1550, [](const Flags& f) { return int64_t{f.chat.gate.max_regex_terms}; }},
    {"max-pattern-states", "156", 156, [](const Flags& f) { return int64_t{f.chat.gate.max_regex_states}; }},
    {"max-rewritten-pattern-bytes", "1570", 1570,
     [](const Flags& f) { return int64_t{f.chat.gate.max_pattern_bytes}; }},
    {"max-choices", "158", 158, [](const Flags& f) { return int64_t{f.chat.gate.max_choices}; }},
};

TEST(FrontFlagsTest, TheBoundsOfSchemasAreFlags) {
  constexpr char kPrefix[] = "structured-outputs-";
  std::vector<std::string> args = {"m"};
  std::set<std::string> named, there;
  std::set<int64_t> values;
  for (const StructuredFlag& row : kStructuredFlags) {
    named.insert(absl::StrCat(kPrefix, row.name));
    args.push_back(absl::StrCat("--", kPrefix, row.name, "=", row.text));
    EXPECT_TRUE(values.insert(row.value).second) << row.name << " has the value of another flag";
  }
  const absl::StatusOr<Flags> flags = ParseFlags(args), defaults = ParseFlags({"m"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  for (const StructuredFlag& row : kStructuredFlags) {
    EXPECT_EQ(row.get(*flags), row.value) << row.name;
    EXPECT_NE(row.get(*defaults), row.value) << row.name << ": a flag without effect would pass";
  }
  Flags any;
  for (const FlagGroup& group : CoordinatorFlags(&any).groups) {
    for (const Flag& flag : group.flags) {
      if (absl::StartsWith(flag.name, kPrefix)) there.insert(flag.name);
    }
  }
  EXPECT_EQ(named, there);
}

TEST(FrontFlagsTest, NoBoundOfStructuredOutputsIsNothing) {
  for (const char* wrong :
       {"max-bytes=0", "max-bytes=-1", "max-choices=0", "compile-timeout=0", "mask-timeout=0s", "max-depth=7",
        "max-whitespace=-1", "max-sequence-bytes=0", "max-chain-branches=-1"}) {
    EXPECT_FALSE(ParseFlags({"m", absl::StrCat("--structured-outputs-", wrong)}).ok()) << wrong;
  }
}

}  // namespace
}  // namespace somnus
