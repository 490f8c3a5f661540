#pragma once
// What the two halves of HttpConnection share. Internal to coordinator/api.

// Boost 1.74's awaitable.hpp uses std::exchange without including it.
// clang-format off
#include <utility>
// clang-format on

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <string>
#include <type_traits>

#include "coordinator/api/routes.h"

namespace somnus {

// Runs `work` on `pool`, answers on the I/O thread.
template <typename Work>
boost::asio::awaitable<std::invoke_result_t<Work>> OnPool(boost::asio::thread_pool* pool, Work work) {
  auto task = [&work]() -> boost::asio::awaitable<std::invoke_result_t<Work>> { co_return work(); };
  co_return co_await boost::asio::co_spawn(*pool, std::move(task), boost::asio::use_awaitable);
}

// Status line and headers. `framing`: the header lines that tell where the body ends.
std::string ResponseHead(const HttpResponse& response, bool keep_alive, const char* framing);

}  // namespace somnus
