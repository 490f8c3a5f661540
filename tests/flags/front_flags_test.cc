// Flags of what clients meet first: ports, keys, certificates, the limits of connections and bodies, chat
// templates, tools and schemas.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

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

TEST(FrontFlagsTest, BytesOfGrammarsThatAreKept) {
  EXPECT_EQ(ParseFlags({"m", "--structured-outputs-max-bytes=3MiB"})->chat.grammar_cache.max_bytes, 3 << 20);
  EXPECT_FALSE(ParseFlags({"m", "--structured-outputs-max-bytes=0"}).ok());
  EXPECT_FALSE(ParseFlags({"m", "--structured-outputs-max-bytes=-1"}).ok());
}

TEST(FrontFlagsTest, TheBoundsOfSchemasAreFlags) {
  const auto flags =
      ParseFlags({"m", "--structured-outputs-max-choices=7", "--structured-outputs-max-schema-keys=100",
                  "--structured-outputs-max-pattern-bytes=99"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->chat.gate.max_choices, 7);
  EXPECT_EQ(flags->chat.gate.max_keys, 100);
  EXPECT_EQ(flags->chat.gate.regex.max_bytes, 99);
  EXPECT_FALSE(ParseFlags({"m", "--structured-outputs-max-choices=0"}).ok());
}

}  // namespace
}  // namespace somnus
