import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends numbered messages with the unmodified Java client until SIGTERM or end of input, and prints one line of JSON per outcome:
 * {"event":"ack","key":"m00000001","broker":"broker-a","queue":0,"offset":0,"at_ms":...,"took_ms":...} for SEND_OK, with "after" if it was
 * tried before in vain, why, and
 * {"event":"fail","key":"m00000002","why":"...","at_ms":...,"took_ms":...} for everything else. Each key is tried once, or again and again
 * for --retry-for-ms, as an application would: a send whose outcome is unknown may be in the log, once or twice, or not, and before
 * the ack nothing was promised. The body is the key, filled up with dots.
 *
 * Run from source: java -cp 'lib/*' NumberedProducer.java --name-server 127.0.0.1:9876 --topic T [--workers 4] [--pause-ms 10]
 *   [--send-timeout-ms 500] [--route-poll-ms 200] [--retry-for-ms 0] [--retry-pause-ms 10]
 *   [--messages 0 (until SIGTERM or end of input)]
 */
public final class NumberedProducer {
    private static final int BODY_BYTES = 200;
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final AtomicLong NEXT_KEY = new AtomicLong(1);
    private static final AtomicBoolean STOPPED = new AtomicBoolean();
    private static long retryForMs;
    private static long retryPauseMs;

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // what libraries print must not get between the lines of JSON
        Map<String, String> options = parse(arguments);
        String topic = required(options, "topic");
        long messages = Long.parseLong(options.getOrDefault("messages", "0"));
        long pauseMs = Long.parseLong(options.getOrDefault("pause-ms", "10"));
        retryForMs = Long.parseLong(options.getOrDefault("retry-for-ms", "0"));
        retryPauseMs = Long.parseLong(options.getOrDefault("retry-pause-ms", "10"));
        DefaultMQProducer producer = producer(options);
        producer.start();
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(options.getOrDefault("workers", "4")); i++) {
            Thread worker = new Thread(() -> work(producer, topic, messages, pauseMs), "worker-" + i);
            worker.start();
            workers.add(worker);
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(workers)));
        if (messages == 0) {
            while (System.in.read() >= 0) {
                // Input is ignored until it ends, which it does when the parent process is gone.
            }
            STOPPED.set(true);
        }
        for (Thread worker : workers) {
            worker.join();
        }
        producer.shutdown();
        System.exit(0);
    }

    private static DefaultMQProducer producer(Map<String, String> options) {
        DefaultMQProducer producer = new DefaultMQProducer("numbered-producer");
        producer.setNamesrvAddr(required(options, "name-server"));
        producer.setSendMsgTimeout(Integer.parseInt(options.getOrDefault("send-timeout-ms", "500")));
        producer.setPollNameServerInterval(Integer.parseInt(options.getOrDefault("route-poll-ms", "200")));
        producer.setRetryTimesWhenSendFailed(0);
        producer.setDefaultTopicQueueNums(4);
        return producer;
    }

    private static void work(DefaultMQProducer producer, String topic, long messages, long pauseMs) {
        while (!STOPPED.get()) {
            long number = NEXT_KEY.getAndIncrement();
            if (messages > 0 && number > messages) {
                return;
            }
            sendOne(producer, topic, String.format("m%08d", number));
            if (!pause(pauseMs)) {
                return;
            }
        }
    }

    private static void sendOne(DefaultMQProducer producer, String topic, String key) {
        StringBuilder body = new StringBuilder(key);
        while (body.length() < BODY_BYTES) {
            body.append('.');
        }
        Message message = new Message(topic, null, key, body.toString().getBytes(StandardCharsets.UTF_8));
        long started = System.nanoTime();
        String why = tryOnce(producer, message, key, started, null);
        while (why != null && System.nanoTime() - started < retryForMs * 1_000_000 && pause(retryPauseMs)) {
            why = tryOnce(producer, message, key, started, why);
        }
        if (why != null) {
            print("fail", key, started, "\"why\":\"" + why + "\"");
        }
    }

    /** Null if it was acknowledged, and then that was told; else why not. */
    private static String tryOnce(DefaultMQProducer producer, Message message, String key, long started, String before) {
        try {
            SendResult result = producer.send(message);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                return result.getSendStatus().toString();
            }
            print("ack", key, started, "\"broker\":\"" + result.getMessageQueue().getBrokerName() + "\",\"queue\":"
                + result.getMessageQueue().getQueueId() + ",\"offset\":" + result.getQueueOffset()
                + (before == null ? "" : ",\"after\":\"" + before + "\""));
            return null;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return "interrupted";
        } catch (Exception failure) {
            return plain(failure);
        }
    }

    private static boolean pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
            return true;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    private static void print(String event, String key, long startedNanos, String rest) {
        double tookMs = (System.nanoTime() - startedNanos) / 1e6;
        String line = String.format("{\"event\":\"%s\",\"key\":\"%s\",%s,\"at_ms\":%d,\"took_ms\":%.3f}",
            event, key, rest, System.currentTimeMillis(), tookMs);
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    /** One line, without what JSON would have to escape; the broker's own words are in the cause. */
    private static String plain(Exception failure) {
        Throwable told = failure.getCause() == null ? failure : failure.getCause();
        String text = told.getClass().getSimpleName() + ": " + told.getMessage();
        String line = text.replaceAll("[\\p{Cntrl}\"\\\\]+", " ");
        return line.length() > 200 ? line.substring(0, 200) : line;
    }

    /** What is outstanding is still waited for, so that no acknowledgement goes untold. */
    private static void stop(List<Thread> workers) {
        STOPPED.set(true);
        for (Thread worker : workers) {
            try {
                worker.join(2000);
            } catch (InterruptedException interrupted) {
                return;
            }
        }
    }

    private static String required(Map<String, String> options, String name) {
        String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    private static Map<String, String> parse(String[] arguments) {
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i < arguments.length; i += 2) {
            if (!arguments[i].startsWith("--") || i + 1 == arguments.length) {
                throw new IllegalArgumentException(arguments[i] + ": expected --name value");
            }
            options.put(arguments[i].substring(2), arguments[i + 1]);
        }
        return options;
    }
}
