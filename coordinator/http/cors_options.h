#pragma once
// Which web pages may use clients' HTTP API from a browser. Plain data; vLLM's options of the same names.

#include <string>
#include <vector>

namespace somnus {

struct CorsOptions {
  std::vector<std::string> allowed_origins;  // "https://chat.example"; {"*"}: all; empty: none
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;  // cookies and client certificates, which browsers send by themselves
};

}  // namespace somnus
