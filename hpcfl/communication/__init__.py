"""What travels: messages, the exchange of rows between ranks, and who hosts which
client.
"""
