"""RocketMQCluster: NameServers, proxies and BrokerGroups made from one object; its status is theirs."""
