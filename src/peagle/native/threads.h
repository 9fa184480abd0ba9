// One pool of threads that work through a pass together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace peagle {

class Team;

// Workers spin for a moment after a pass, since the next one often follows at once, and then sleep:
// a server shares these cores.
class ThreadPool {
 public:
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t size() const { return workers_.size() + 1; }
  // Runs `work` on every thread, the caller among them, and returns when all are done.
  void run(const std::function<void(Team&)>& work);

 private:
  friend class Team;
  void work_forever(std::size_t index);
  void barrier(bool& sense);

  std::vector<std::thread> workers_;
  std::mutex one_at_a_time_, sleeping_;
  std::condition_variable wake_;
  std::atomic<std::size_t> generation_{0}, finished_{0};
  std::atomic<bool> stop_{false};
  const std::function<void(Team&)>* work_ = nullptr;
  std::atomic<std::size_t> waiting_{0};
  std::atomic<bool> sense_{false};
  std::atomic<std::size_t> next_[3] = {};
};

// One thread's view of the others in a pass.
class Team {
 public:
  Team(ThreadPool& pool, std::size_t index) : index(index), pool_(pool) {}

  // Takes the numbers below `count` in pieces of `grain`; what each thread gets is chance, so
  // pieces must not depend on one another. All threads must call it; all leave it together.
  template <class Piece>
  void share(std::size_t count, std::size_t grain, const Piece& piece) {
    std::atomic<std::size_t>& next = pool_.next_[phase_ % 3];
    for (;;) {
      const std::size_t first = next.fetch_add(grain, std::memory_order_relaxed);
      if (first >= count) break;
      piece(first, first + grain < count ? first + grain : count);
    }
    meet();
  }

  const std::size_t index;

 private:
  void meet() {
    // Everyone has left the counter used two phases from now: reset it before meeting.
    if (index == 0) pool_.next_[(phase_ + 2) % 3].store(0, std::memory_order_relaxed);
    phase_++;
    pool_.barrier(sense_);
  }

  friend class ThreadPool;
  ThreadPool& pool_;
  std::size_t phase_ = 0;
  bool sense_ = false;
};

}  // namespace peagle
