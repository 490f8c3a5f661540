// status, sleep and wake-up: clients of ControlService.
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <stdio.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/request_bounds.h"
#include "proto/control.grpc.pb.h"
#include "proto/status.h"
#include "tools/cli/commands.h"
#include "tools/cli/openai.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

constexpr std::chrono::seconds kConnectTimeout{5};

std::vector<Flag> GrpcFlags() {
  return {{"host", "ADDRESS", "where the server listens (127.0.0.1)"},
          {"grpc-port", "PORT", "its gRPC port (50051)"},
          ApiKeyFlag(),
          {"timeout", "SECONDS", "give up after so long (120)"}};
}

// The control service of the flags' server. Unavailable at once where nothing listens.
absl::StatusOr<std::unique_ptr<v1::ControlService::Stub>> Connect(const Args& args) {
  ASSIGN_OR_RETURN(const int64_t port, args.GetInt("grpc-port", 50051, 1, 65535));
  const std::string address = absl::StrCat(args.Get("host", "127.0.0.1"), ":", port);
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const auto deadline = std::chrono::system_clock::now() + kConnectTimeout;
  grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE &&
         channel->WaitForStateChange(state, deadline)) {
    state = channel->GetState(true);
  }
  if (state != GRPC_CHANNEL_READY) return absl::UnavailableError(absl::StrCat("cannot connect to ", address));
  return v1::ControlService::NewStub(channel);
}

// The server's refusal as an error of ours: whatever its code, the server was there and the flags were right.
absl::Status ServerError(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::InternalError(status.error_message().empty() ? FromGrpcStatus(status).ToString()
                                                            : status.error_message());
}

// Deadline and key of a call.
absl::Status PrepareCall(const Args& args, grpc::ClientContext* context) {
  ASSIGN_OR_RETURN(const int64_t seconds, args.GetInt("timeout", 120, 1, 86400));
  if (const std::string key = ApiKey(args); !key.empty()) {
    context->AddMetadata("authorization", absl::StrCat("Bearer ", key));
  }
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  return absl::OkStatus();
}

std::string Bytes(int64_t bytes) {
  if (bytes >= int64_t{1} << 30) return absl::StrFormat("%.2f GiB", bytes / double(int64_t{1} << 30));
  return absl::StrFormat("%.1f MiB", bytes / double(1 << 20));
}

std::string StateText(const v1::GetStatusResponse& status) {
  const std::string name =
      absl::AsciiStrToLower(v1::EngineState_Name(status.state()).substr(sizeof("ENGINE_STATE_") - 1));
  const Style style = status.state() == v1::ENGINE_STATE_AWAKE    ? Style::kGreen
                      : status.state() == v1::ENGINE_STATE_FAILED ? Style::kRed
                                                                  : Style::kYellow;
  const std::string level =
      status.sleep_level() > 0 ? absl::StrCat(" (level ", status.sleep_level(), ")") : "";
  return Styled(STDOUT_FILENO, style, name) + level;
}

void PrintStatus(const v1::GetStatusResponse& status) {
  const std::string uptime = absl::FormatDuration(absl::Seconds(static_cast<int64_t>(status.uptime_s())));
  absl::PrintF("model     %s\n", status.model());
  absl::PrintF("state     %s\n", StateText(status));
  if (!status.error().empty()) absl::PrintF("error     %s\n", status.error());
  absl::PrintF("requests  %d running, %d waiting\n", status.num_requests_running(),
               status.num_requests_waiting());
  absl::PrintF("blocks    %d free of %d, %s\n", status.free_blocks(), status.total_blocks(),
               status.kv_cache_dtype());
  absl::PrintF("context   %d tokens\n", status.max_model_len());
  absl::PrintF("version   %s, up %s\n\n", status.version(), uptime);
  if (status.ranks().empty()) return;
  absl::PrintF("%s\n", Styled(STDOUT_FILENO, Style::kBold,
                              absl::StrFormat("%-5s %-8s %-20s %-8s %12s %12s %12s", "rank", "pid", "host",
                                              "device", "weights", "kv_cache", "workspace")));
  for (const v1::RankStatus& rank : status.ranks()) {
    const auto bytes = [&rank](const char* tag) {
      const auto found = rank.bytes_by_tag().find(tag);
      return Bytes(found == rank.bytes_by_tag().end() ? 0 : found->second);
    };
    absl::PrintF("%-5d %-8d %-20s %-8s %12s %12s %12s%s\n", rank.rank(), rank.pid(), rank.host(),
                 rank.device(), bytes("weights"), bytes("kv_cache"), bytes("workspace"),
                 rank.error().empty() ? "" : "  " + Styled(STDOUT_FILENO, Style::kRed, rank.error()));
  }
}

// Exit code 0 exactly when GET /health says that requests are served.
absl::StatusOr<int> Ready(const Args& args) {
  ASSIGN_OR_RETURN(const HttpClient client, ClientFromFlags(args));
  ASSIGN_OR_RETURN(const HttpResponse response, client.Get("/health"));
  puts(response.status == 200 ? "ready" : "not ready");
  return response.status == 200 ? kOk : kServerError;
}

absl::StatusOr<int> Status(const std::vector<std::string>& argv) {
  ASSIGN_OR_RETURN(const Args args, Args::Parse(StatusCommand(), argv));
  if (args.Has("ready")) return Ready(args);
  ASSIGN_OR_RETURN(const auto stub, Connect(args));
  grpc::ClientContext context;
  RETURN_IF_ERROR(PrepareCall(args, &context));
  v1::GetStatusResponse response;
  RETURN_IF_ERROR(ServerError(stub->GetStatus(&context, v1::GetStatusRequest(), &response)));
  if (args.Has("json")) {
    std::string json;
    google::protobuf::util::JsonPrintOptions options;
    options.add_whitespace = true;
    options.always_print_primitive_fields = true;
    options.preserve_proto_field_names = true;
    if (!google::protobuf::util::MessageToJsonString(response, &json, options).ok()) {
      return absl::InternalError("the status cannot be printed as JSON");
    }
    fputs(json.c_str(), stdout);
  } else {
    PrintStatus(response);
  }
  return response.state() == v1::ENGINE_STATE_FAILED ? kServerError : kOk;
}

template <typename Map>
void PrintBytes(absl::string_view verb, const Map& bytes_by_tag, double seconds) {
  int64_t total = 0;
  std::vector<std::string> parts;
  for (const auto& [tag, bytes] : std::map<std::string, int64_t>(bytes_by_tag.begin(), bytes_by_tag.end())) {
    total += bytes;
    parts.push_back(absl::StrCat(tag, " ", Bytes(bytes)));
  }
  absl::PrintF("%s %s (%s) in %.3f s\n", verb, Bytes(total), absl::StrJoin(parts, ", "), seconds);
}

absl::StatusOr<int> Sleep(const std::vector<std::string>& argv) {
  ASSIGN_OR_RETURN(const Args args, Args::Parse(SleepCommand(), argv));
  ASSIGN_OR_RETURN(const int64_t level, args.GetInt("level", 1, kMinSleepLevel, kMaxSleepLevel));
  ASSIGN_OR_RETURN(const auto stub, Connect(args));
  grpc::ClientContext context;
  RETURN_IF_ERROR(PrepareCall(args, &context));
  v1::SleepRequest request;
  request.set_level(static_cast<int32_t>(level));
  v1::SleepResponse response;
  RETURN_IF_ERROR(ServerError(stub->Sleep(&context, request, &response)));
  if (response.already_asleep()) {
    absl::PrintF("already asleep (level %d)\n", response.level());
  } else {
    PrintBytes("freed", response.freed_bytes_by_tag(), response.seconds());
  }
  return kOk;
}

absl::StatusOr<int> WakeUp(const std::vector<std::string>& argv) {
  ASSIGN_OR_RETURN(const Args args, Args::Parse(WakeUpCommand(), argv));
  ASSIGN_OR_RETURN(const auto stub, Connect(args));
  grpc::ClientContext context;
  RETURN_IF_ERROR(PrepareCall(args, &context));
  v1::WakeUpRequest request;
  for (const auto tag : absl::StrSplit(args.Get("tags"), ',', absl::SkipEmpty()))
    request.add_tags(std::string(tag));
  v1::WakeUpResponse response;
  RETURN_IF_ERROR(ServerError(stub->WakeUp(&context, request, &response)));
  if (response.already_resident()) {
    absl::PrintF("%s\n", response.awake() ? "already awake" : "already resident; the engine is still asleep");
  } else {
    PrintBytes("mapped", response.mapped_bytes_by_tag(), response.seconds());
  }
  return kOk;
}

int ExitCode(const absl::StatusOr<int>& code) { return code.ok() ? *code : Fail(code.status()); }

Command WithFlags(Command command, const std::vector<Flag>& more) {
  command.flags.insert(command.flags.end(), more.begin(), more.end());
  return command;
}

}  // namespace

const Command& StatusCommand() {
  static const Command* command = new Command(WithFlags(
      {"status", "somnus status [flags]", "what the server and its workers are doing",
       "Shows the engine's state, its requests and KV blocks, and what memory each rank holds. Exit code 1\n"
       "when the engine has failed.\n\n"
       "  somnus status\n"
       "  until somnus status --ready; do sleep 1; done",
       GrpcFlags()},
      {{"json", "", "the same as JSON (proto/control.proto, GetStatusResponse)"},
       {"ready", "", "only ask GET /health on --port: exit code 0 when requests are served"},
       {"port", "PORT", "the HTTP port that --ready asks (8000)"}}));
  return *command;
}

const Command& SleepCommand() {
  static const Command* command = new Command(WithFlags(
      {"sleep", "somnus sleep [--level 1|2] [flags]", "give the device memory back, keep the processes",
       "Frees device memory on every rank, or on none. Open requests go on after wake-up, with the same\n"
       "tokens; new ones wait. Level 1 keeps the weights in host memory, level 2 drops them too (wake-up\n"
       "then reads them from disk).",
       GrpcFlags()},
      {{"level", "1|2", "how deep (1)"}}));
  return *command;
}

const Command& WakeUpCommand() {
  static const Command* command = new Command(WithFlags(
      {"wake-up", "somnus wake-up [--tags weights,kv_cache] [flags]", "take the memory again and serve",
       "Maps everything back, at the same addresses, and serves again.", GrpcFlags()},
      {{"tags", "TAG,...", "wake only these: weights, kv_cache, workspace (all)"}}));
  return *command;
}

int RunStatus(const std::vector<std::string>& args) { return ExitCode(Status(args)); }
int RunSleep(const std::vector<std::string>& args) { return ExitCode(Sleep(args)); }
int RunWakeUp(const std::vector<std::string>& args) { return ExitCode(WakeUp(args)); }

}  // namespace somnus::cli
