#pragma once
// Moves work of a connection's coroutine that would take too long off the I/O thread. Internal to
// coordinator/api.

// Boost 1.74's awaitable.hpp uses std::exchange without including it.
// clang-format off
#include <utility>
// clang-format on

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <type_traits>

namespace somnus {

// Runs `work` on `pool`; the coroutine resumes with its result on the I/O thread.
template <typename Work>
boost::asio::awaitable<std::invoke_result_t<Work>> OnPool(boost::asio::thread_pool* pool, Work work) {
  auto task = [&work]() -> boost::asio::awaitable<std::invoke_result_t<Work>> { co_return work(); };
  co_return co_await boost::asio::co_spawn(*pool, std::move(task), boost::asio::use_awaitable);
}

}  // namespace somnus
