import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingConnectException;

/**
 * The unmodified Java client of RocketMQ in three roles; one line of JSON per outcome on standard output.
 *
 * produce: sends message n (key "k00000001", a body of its own size and content) until it is acknowledged, attempt after attempt;
 *   it may send up to the number that the last line of its input said. {"event":"ack","key","crc","queue","offset","copies"}:
 *   `copies` is how many of the attempts may have left the message in the log, the acknowledged one among them.
 * pull: a DefaultLitePullConsumer that is given all queues of the topic and reads them from the beginning.
 * push: a DefaultMQPushConsumer; `--from` says where it begins without an offset, CONSUME_FROM_FIRST_OFFSET unless given.
 *   Both: {"event":"got","key","crc","queue","offset"}.
 * All end with their input.
 */
public final class InteropClient {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final AtomicLong NEXT = new AtomicLong(1);
    private static volatile long allowed;
    private static volatile boolean ended;

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // what libraries print must not get between the lines of JSON
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i], arguments[i + 1]);
        }
        switch (arguments[0]) {
            case "produce" -> produce(options);
            case "pull" -> pull(options);
            case "push" -> push(options);
            default -> throw new IllegalArgumentException(arguments[0] + ": expected produce, pull or push");
        }
        System.exit(0);
    }

    private static void produce(Map<String, String> options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-producer");
        producer.setNamesrvAddr(options.get("--name-server"));
        producer.setSendMsgTimeout(4000);
        producer.setPollNameServerInterval(200);
        producer.setRetryTimesWhenSendFailed(0); // we retry ourselves, so that every attempt is known
        producer.setDefaultTopicQueueNums(4);
        producer.start();
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(options.get("--workers")); i++) {
            Thread worker = new Thread(() -> work(producer, options.get("--topic")), "worker-" + i);
            worker.start();
            workers.add(worker);
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            allowed = Long.parseLong(line.trim());
        }
        ended = true;
        for (Thread worker : workers) {
            worker.join();
        }
        producer.shutdown();
    }

    private static void work(DefaultMQProducer producer, String topic) {
        while (!ended) {
            long number = NEXT.get();
            if (number > allowed) {
                sleep(2);
            } else if (NEXT.compareAndSet(number, number + 1)) {
                sendUntilAcknowledged(producer, topic, number);
            }
        }
    }

    private static void sendUntilAcknowledged(DefaultMQProducer producer, String topic, long number) {
        String key = String.format("k%08d", number);
        byte[] body = body(number);
        int copies = 1;
        while (!ended) {
            try {
                SendResult result = producer.send(new Message(topic, null, key, body));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    print("ack", key, body, result.getMessageQueue().getQueueId(), result.getQueueOffset(), copies);
                    return;
                }
                copies++; // stored, but not by everybody who should
                System.err.println(key + " " + result.getSendStatus());
            } catch (Exception failure) {
                if (mayBeStored(failure)) {
                    copies++;
                }
                System.err.println(key + " " + (mayBeStored(failure) ? "unknown: " : "refused: ") + failure);
            }
            sleep(50);
        }
    }

    /** A broker that says "busy" has thrown the message away; one that was not reached never saw it. */
    private static boolean mayBeStored(Exception failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof RemotingConnectException) {
                return false;
            }
            if (cause instanceof MQBrokerException) {
                return ((MQBrokerException) cause).getResponseCode() != 2;
            }
        }
        return !String.valueOf(failure.getMessage()).contains("No route info of this topic");
    }

    /** Of 200 messages 195 have up to 4 KiB, 4 up to 64 KiB, 1 up to 1 MiB (every fourth of them exactly); half of each compress well. */
    private static byte[] body(long number) {
        Random random = new Random(number);
        int most = number % 200 == 0 ? 1 << 20 : number % 40 == 0 ? 1 << 16 : 1 << 12;
        byte[] body = new byte[number % 800 == 0 ? most : 1 + random.nextInt(most)];
        if ((number + number / 40 + number / 800) % 2 == 0) {
            java.util.Arrays.fill(body, (byte) ('a' + number % 26));
            body[0] = (byte) number;
        } else {
            random.nextBytes(body);
        }
        return body;
    }

    private static void pull(Map<String, String> options) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.get("--group"));
        consumer.setNamesrvAddr(options.get("--name-server"));
        consumer.setPollNameServerInterval(200);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(32);
        consumer.setPullThresholdSizeForQueue(16);
        consumer.start();
        Collection<MessageQueue> queues = null;
        while (queues == null || queues.isEmpty()) {
            try {
                queues = consumer.fetchMessageQueues(options.get("--topic"));
            } catch (org.apache.rocketmq.client.exception.MQClientException notYetThere) {
                sleep(100);
            }
        }
        consumer.assign(queues);
        watchInput();
        while (!ended) {
            for (MessageExt message : consumer.poll(200)) {
                got(message);
            }
        }
        consumer.shutdown();
    }

    private static void push(Map<String, String> options) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("--group"));
        consumer.setNamesrvAddr(options.get("--name-server"));
        consumer.setPollNameServerInterval(200);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(options.getOrDefault("--from", "CONSUME_FROM_FIRST_OFFSET")));
        consumer.setHeartbeatBrokerInterval(1000); // a heartbeat that a change of queues crosses is repeated after 30 s otherwise
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setPullThresholdSizeForQueue(16);
        consumer.subscribe(options.get("--topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(InteropClient::got);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        watchInput();
        while (!ended) {
            sleep(20);
        }
        consumer.shutdown();
    }

    private static void watchInput() {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // Nothing is expected: the end of input is the news.
                }
            } catch (java.io.IOException failure) {
                System.err.println(failure);
            }
            ended = true;
        }, "input");
        watcher.setDaemon(true);
        watcher.start();
    }

    private static void got(MessageExt message) {
        print("got", message.getKeys(), message.getBody(), message.getQueueId(), message.getQueueOffset(), 0);
    }

    private static void print(String event, String key, byte[] body, int queue, long offset, int copies) {
        CRC32 crc = new CRC32();
        crc.update(body);
        String line = String.format("{\"event\":\"%s\",\"key\":\"%s\",\"crc\":%d,\"queue\":%d,\"offset\":%d,\"copies\":%d}",
            event, key, crc.getValue(), queue, offset, copies);
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
